package agent

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"managoat/internal/input"
	"managoat/internal/refusal"
)

// Limits of an agent's skills.
const (
	MaxSkills           = 50
	MaxSkillContent     = 64 << 10  // bytes of one
	MaxSkillsContent    = 512 << 10 // bytes of all
	maxSkillDescription = 1024      // characters, by the Agent Skills standard
)

// Skill is a text that teaches an agent how something is done: the SKILL.md of a directory of its name in the config home.
type Skill struct {
	Name    string `json:"name" doc:"1 to 64 of a-z, 0-9 and -, unique in the agent; the name of its directory"`
	Content string `json:"content" doc:"SKILL.md: it begins with front matter between lines of --- that has the same name and a description, as the Agent Skills standard asks; nothing is added to it"`
	SkillID string `json:"skill_id,omitempty" doc:"not available yet"`
	Version *int   `json:"version,omitempty" doc:"not available yet"`
	Source  string `json:"source,omitempty" doc:"not available yet"`
	Ref     string `json:"ref,omitempty" doc:"not available yet"`
}

// kept tells a skill that is kept elsewhere from one that is written here.
func (s Skill) kept() bool {
	return s.SkillID != "" || s.Version != nil || s.Source != "" || s.Ref != ""
}

var skillName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

func (c *Config) validateSkills(v *refusal.Validation) {
	v.Check(len(c.Skills) <= MaxSkills, "skills", "must have at most %d entries", MaxSkills)
	v.Check(len(c.Skills) == 0 || c.Runtime != ACP, "skills", "are for the runtimes claude, codex and gemini: a command of the runtime acp has no place from which it surely reads them")
	seen, size := map[string]bool{}, 0
	for i := range c.Skills {
		s := &c.Skills[i]
		if s.kept() {
			continue // refused once the rest is right
		}
		s.Content = input.Lines(s.Content)
		at := fmt.Sprintf("skills[%d]", i)
		v.Check(skillName.MatchString(s.Name), at+".name", "must be 1 to 64 of a-z, 0-9 and -")
		v.Check(!seen[s.Name], at+".name", "is the name of another skill of this agent")
		seen[s.Name] = true
		input.Text(v, at+".content", s.Content, MaxSkillContent)
		if problem := frontMatter(s.Content, s.Name); problem != "" {
			v.Add(at+".content", "%s", problem)
		}
		size += len(s.Content)
	}
	v.Check(size <= MaxSkillsContent, "skills", "must have at most %d bytes of content, all together", MaxSkillsContent)
}

// frontMatter says what a skill's head lacks, "" when nothing. Runtimes find a skill by it, and those that read it strictly
// pass over one without it in silence. It is YAML, of which only the two keys that must be there are read.
func frontMatter(content, name string) string {
	lines := strings.Split(content, "\n")
	end := 1 + slices.Index(lines[1:], "---")
	if lines[0] != "---" || end == 0 {
		return fmt.Sprintf("must begin with front matter: a line ---, then name: %s and description: what the skill is for, then a line ---", name)
	}
	keys, key := map[string]string{}, ""
	for _, line := range lines[1:end] {
		if k, value, found := strings.Cut(line, ":"); found && k == strings.TrimLeft(k, " \t#-") {
			key = k
			keys[key] = scalar(value)
		} else if strings.HasPrefix(line, " ") { // a value that goes on
			keys[key] = strings.TrimSpace(keys[key] + " " + strings.TrimSpace(line))
		}
	}
	switch n := utf8.RuneCountInString(keys["description"]); {
	case keys["name"] != name:
		return fmt.Sprintf("must have name: %s in its front matter, the skill's own name", name)
	case n == 0 || n > maxSkillDescription:
		return fmt.Sprintf("must have a description of 1 to %d characters in its front matter: runtimes choose a skill by it", maxSkillDescription)
	}
	return ""
}

// scalar is a value of one line without its quotes, and without the sign of one that follows on the next lines.
func scalar(value string) string {
	value = strings.TrimSpace(value)
	if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		return value[1 : n-1]
	}
	if strings.HasPrefix(value, "|") || strings.HasPrefix(value, ">") {
		return ""
	}
	return value
}

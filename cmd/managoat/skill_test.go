package main

import (
	"log/slog"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"managoat/handlers"
)

// The skill that a server hands to agents names verbs and flags of this binary only.
func TestTheSkillNamesRealVerbsOnly(t *testing.T) {
	t.Parallel()
	e, _ := handlers.New(handlers.Config{Routes: handlers.APIRoutes(handlers.JSON{}), Log: slog.New(slog.DiscardHandler)})
	answer := httptest.NewRecorder()
	e.ServeHTTP(answer, httptest.NewRequest("GET", "/skill", nil))
	lines := regexp.MustCompile(`(?m)^    managoat ([^#\n]+)`).FindAllStringSubmatch(answer.Body.String(), -1)
	if len(lines) < 8 {
		t.Fatalf("the skill shows %d commands only: %s", len(lines), answer.Body)
	}
	for _, line := range lines {
		args := strings.Fields(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(line[1], "TEXT"))
		cmd, rest, err := root().Find(args)
		if err != nil || cmd.HasSubCommands() {
			t.Errorf("%s: no such verb", line[1])
			continue
		}
		err = cmd.ParseFlags(rest)
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: %v", line[1], err)
		}
	}
}

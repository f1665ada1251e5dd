package conversation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"managoat/db"
	"managoat/internal/mcp"
	"managoat/internal/refusal"
	"managoat/internal/runtime"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
	"managoat/sandbox/guest"
)

// Directories of config homes and of the runtime template.
const (
	homesDir    = guest.Home + "/.managoat/c"
	templateDir = guest.Home + "/.managoat/template"
	logsDir     = guest.Home + "/.managoat/logs" // full logs of tool calls, by conversation
)

// maxMerged bounds a JSON file of a config home that we set keys in, in bytes. claude's own grows with its use.
const maxMerged = 16 << 20

// diskRoots are what a config home may lie under.
var diskRoots = []string{guest.Home}

func homeOf(conversationID uuid.UUID) string { return path.Join(homesDir, conversationID.String()) }

// makeHome makes a conversation's config home on the machine: a copy of the runtime's template, and our files over it.
// What a crash left half made is made again from the start.
func makeHome(ctx context.Context, g *guest.Client, rt runtime.Runtime, l runtime.Launch) error {
	if err := g.Remove(ctx, diskRoots, l.Home); err != nil {
		return fmt.Errorf("clear the config home: %w", err)
	}
	place := path.Join(l.Home, rt.Place())
	if _, err := g.Mkdir(ctx, diskRoots, place, 0o700); err != nil {
		return fmt.Errorf("make the config home: %w", err)
	}
	if rt.Template() != "" {
		if err := copyTemplate(ctx, g, path.Join(templateDir, rt.Template()), place); err != nil {
			return err
		}
	}
	return writeHome(ctx, g, l.Home, append(rt.Files(l), rt.Credentials(l)...))
}

// writeHome puts files of ours into a config home, in place of what is there.
func writeHome(ctx context.Context, g *guest.Client, home string, files []runtime.File) error {
	for _, f := range files {
		to := path.Join(home, f.Path)
		old := to
		if f.Replaces != "" {
			old = path.Join(home, f.Replaces)
		}
		err := g.Remove(ctx, diskRoots, old)
		if is(err, guest.ErrNotADir) { // a file lies where our directory must
			err = g.Remove(ctx, diskRoots, path.Dir(old))
		}
		if err == nil {
			err = g.WriteFile(ctx, diskRoots, to, f.Data, f.Mode)
		}
		if is(err, guest.ErrUnreadable) {
			return fail(CodeRuntimeTemplate, "%s of the config home cannot be written: the runtime template has its directory without the permission to write. The setup script must give it that.", f.Path).
				with("reason", "read_only").with("path", to).because(err)
		}
		if err != nil {
			return fmt.Errorf("write %s of the config home: %w", f.Path, err)
		}
	}
	return nil
}

// copyTemplate copies the template's directory of one runtime, unless a link leads there: that one is not used.
func copyTemplate(ctx context.Context, g *guest.Client, from, to string) error {
	_, resolved, err := g.Stat(ctx, diskRoots, from)
	switch {
	case is(err, guest.ErrNotFound, guest.ErrNotADir, guest.ErrOutside), err == nil && resolved != from:
		return nil
	case err == nil:
		err = g.CopyTree(ctx, diskRoots, from, to)
	}
	if is(err, guest.ErrUnreadable) {
		return unreadable(err, from)
	}
	if is(err, guest.ErrTooLarge) {
		return fail(CodeRuntimeTemplate, "%s is too large to be copied for each conversation: at most 100,000 files and directories, 100 levels and 1 GiB. The setup script must put it elsewhere.", from).
			with("reason", guest.ErrTooLarge).with("path", from).because(err)
	}
	if err != nil {
		return fmt.Errorf("copy the runtime template: %w", err)
	}
	return nil
}

// merge sets our keys in the JSON files of a config home, at every start of the runtime: whatever else stands in them
// stays. from is where the files of a home that was just made came from, "" for one that is used again.
func merge(ctx context.Context, g *guest.Client, rt runtime.Runtime, l runtime.Launch, from string) error {
	var all errgroup.Group // side by side: every wake waits for them
	for _, m := range rt.Merges(l) {
		file := path.Join(l.Home, m.Path)
		source := file
		if from != "" {
			source = path.Join(from, strings.TrimPrefix(m.Path, rt.Place()))
		}
		all.Go(func() error { return mergeFile(ctx, g, file, source, m) })
	}
	return all.Wait()
}

// mergeFile sets keys in one file. source is the name of it that people can mend.
func mergeFile(ctx context.Context, g *guest.Client, file, source string, m runtime.Merge) error {
	object, mode := map[string]json.RawMessage{}, fs.FileMode(0o600)
	entry, _, err := g.Stat(ctx, diskRoots, file)
	if err == nil {
		var data []byte
		mode = entry.Mode.Perm()
		data, _, err = g.ReadFile(ctx, diskRoots, file, maxMerged+1)
		if err == nil && (len(data) > maxMerged || json.Unmarshal(data, &object) != nil || object == nil) || is(err, guest.ErrIsADir) {
			return notAnObject(source)
		}
	}
	switch {
	case is(err, guest.ErrNotFound):
	case is(err, guest.ErrUnreadable):
		return unreadable(err, source)
	case err != nil:
		return fmt.Errorf("read %s of the config home: %w", m.Path, err)
	}
	for key, value := range m.Keys {
		if object[key], err = plainJSON(value); err != nil {
			return err
		}
	}
	out, err := plainJSON(object)
	if err != nil {
		return err
	}
	if err := g.WriteFile(ctx, diskRoots, file, out, uint32(mode)); err != nil {
		return fmt.Errorf("write %s of the config home: %w", m.Path, err)
	}
	return nil
}

// plainJSON is a value's JSON as people write it.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// is tells whether the guest refused with one of the codes.
func is(err error, codes ...string) bool {
	var file *guest.FileError
	return errors.As(err, &file) && slices.Contains(codes, file.Code)
}

func notAnObject(file string) *failure {
	return fail(CodeRuntimeTemplate, "%s is not a JSON object. What the setup script writes there, under $MANAGOAT_RUNTIME_TEMPLATE, must be one.", file).
		with("reason", guest.ErrNotJSONOb).with("path", file)
}

// unreadable names what the sandbox user cannot read.
func unreadable(err error, at string) *failure {
	var file *guest.FileError
	if errors.As(err, &file) && file.Path != "" {
		at = file.Path
	}
	return fail(CodeRuntimeTemplate, "%s cannot be read by the sandbox user: was it written with sudo? The setup script must give it to the user sprite.", at).
		with("reason", "unreadable").with("path", at).because(err)
}

// mending is what remains to be done about a template, or a file of a config home, beside the setup script, which has run: on
// a disk that is kept it is mended too; a machine of the conversation's own is not, since nobody reaches it.
func mending(own bool) string {
	if own {
		return " Then start a new conversation: the machine is this one's own, and its setup is not run again."
	}
	return " Mend it on the machine's disk too, which the setup made, or rebuild the workspace."
}

// servers are the MCP servers of the conversation's agent as it is now, which runs in the version that the conversation began
// with in all else: a server that it dropped is not started again. An agent that was deleted keeps those it had.
func (t *turn) servers(ctx context.Context, up *workspace.Up) (mcp.Servers, error) {
	servers := t.agent.MCPServers
	now, err := t.s.o.Agents.Get(ctx, tenant.SystemActor(t.c.TenantID, "conversation"), t.c.AgentID)
	if err == nil {
		servers = now.MCPServers
	} else if !refusal.Is(err, refusal.NotFound) {
		return nil, err
	}
	resolved, missing, err := servers.Resolve(func(name string) (string, bool) {
		if s, ok := up.Secrets[name]; ok { // they win, as in the runtime's own environment
			return s.Reveal(), true
		}
		v, ok := up.Vars[name]
		return v, ok
	})
	if len(missing) > 0 {
		return nil, fail(CodeMCPVariables, "The agent's MCP servers use variables that neither the workspace's environment nor its vault has: %s. Set them there as variables or secrets, or change the agent's mcp_servers, and send the prompt again.",
			strings.Join(missing, ", ")).with("missing", missing)
	}
	if err != nil {
		errs := refusal.FieldErrors(err)
		return nil, fail(CodeMCPInvalid, "With the values of their variables, the agent's MCP servers are not valid: %s. Change those values or the agent's mcp_servers, and send the prompt again.",
			strings.Join(slices.Sorted(maps.Keys(errs)), ", ")).with("errors", errs)
	}
	return resolved, nil
}

// clearHomes removes the config homes that conversations left on a machine while it was parked. One that cannot be removed
// now, too deep or still written to, stays for another time: it is in nobody's way.
func (s *Service) clearHomes(ctx context.Context, g *guest.Client, tenantID, workspaceID, machineID uuid.UUID) error {
	left, err := s.db.Tenant(tenantID).LeftHomes(ctx, workspaceID, &machineID)
	if err != nil {
		return fmt.Errorf("look for config homes that were left: %w", err)
	}
	for _, id := range left {
		err := s.removeHome(ctx, g, tenantID, id)
		if ctx.Err() != nil || errors.Is(err, guest.ErrGone) || db.Away(err) {
			return err
		}
		if err != nil {
			s.log.Warn("a config home stays on its machine", "conversation", id, "error", err)
		}
	}
	return nil
}

func (s *Service) removeHome(ctx context.Context, g *guest.Client, tenantID, conversationID uuid.UUID) error {
	for _, dir := range []string{homeOf(conversationID), path.Join(logsDir, conversationID.String())} {
		if err := g.Remove(ctx, diskRoots, dir); err != nil {
			return fmt.Errorf("remove the config home: %w", err)
		}
	}
	if err := s.db.Tenant(tenantID).ClearHome(ctx, conversationID); err != nil {
		return fmt.Errorf("forget the config home: %w", err)
	}
	return nil
}

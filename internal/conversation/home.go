package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"

	"github.com/google/uuid"

	"managoat/internal/runtime"
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
	if _, err := g.Mkdir(ctx, diskRoots, l.Home, 0o700); err != nil {
		return fmt.Errorf("make the config home: %w", err)
	}
	if rt.Template() != "" {
		if err := copyTemplate(ctx, g, path.Join(templateDir, rt.Template()), l.Home); err != nil {
			return err
		}
	}
	for _, f := range rt.Files(l) {
		to := path.Join(l.Home, f.Path)
		if err := g.Remove(ctx, diskRoots, to); err != nil {
			return fmt.Errorf("replace %s of the config home: %w", f.Path, err)
		}
		if err := g.WriteFile(ctx, diskRoots, to, f.Data, f.Mode); err != nil {
			return fmt.Errorf("write %s of the config home: %w", f.Path, err)
		}
	}
	return nil
}

// copyTemplate copies the template's directory of one runtime, unless a link leads there: that one is not used.
func copyTemplate(ctx context.Context, g *guest.Client, from, to string) error {
	_, resolved, err := g.Stat(ctx, diskRoots, from)
	var file *guest.FileError
	if errors.As(err, &file) && (file.Code == guest.ErrNotFound || file.Code == guest.ErrNotADir || file.Code == guest.ErrOutside) {
		return nil
	}
	if err != nil {
		return templateError(err, from)
	}
	if resolved != from {
		return nil
	}
	return templateError(g.CopyTree(ctx, diskRoots, from, to), from)
}

// merge sets our keys in the JSON files of a config home, at every start of the runtime: whatever else stands in them
// stays.
func merge(ctx context.Context, g *guest.Client, rt runtime.Runtime, l runtime.Launch) error {
	for _, m := range rt.Merges(l) {
		file := path.Join(l.Home, m.Path)
		object := map[string]json.RawMessage{}
		data, size, err := g.ReadFile(ctx, diskRoots, file, maxMerged)
		var missing *guest.FileError
		switch {
		case errors.As(err, &missing) && missing.Code == guest.ErrNotFound:
		case err != nil:
			return templateError(err, file)
		case size > maxMerged || json.Unmarshal(data, &object) != nil || object == nil:
			return notAnObject(m.Path)
		}
		for key, value := range m.Keys {
			if object[key], err = json.Marshal(value); err != nil {
				return err
			}
		}
		out, err := json.MarshalIndent(object, "", "  ")
		if err != nil {
			return err
		}
		if err := g.WriteFile(ctx, diskRoots, file, append(out, '\n'), 0o600); err != nil {
			return fmt.Errorf("write %s of the config home: %w", m.Path, err)
		}
	}
	return nil
}

func notAnObject(file string) *failure {
	f := fail(CodeRuntimeTemplate, "%s of the runtime template is not a JSON object. Mend it where the setup script writes it, under $MANAGOAT_RUNTIME_TEMPLATE, or on the machine's disk.", file).
		with("reason", guest.ErrNotJSONOb).with("path", file)
	f.ends = true
	return f
}

// templateError names what the sandbox user cannot read.
func templateError(err error, at string) error {
	var file *guest.FileError
	if !errors.As(err, &file) || file.Code != guest.ErrUnreadable && file.Code != guest.ErrIsADir && file.Code != guest.ErrOutside {
		if err != nil {
			return fmt.Errorf("copy the runtime template: %w", err)
		}
		return nil
	}
	where := file.Path
	if where == "" {
		where = at
	}
	f := fail(CodeRuntimeTemplate, "%s of the runtime template cannot be read by the sandbox user: was it written with sudo? Give it to the user sprite.", where).
		with("reason", "unreadable").with("path", where).because(err)
	f.ends = true
	return f
}

// clearHomes removes the config homes that conversations left on a machine while it was parked.
func (s *Service) clearHomes(ctx context.Context, g *guest.Client, tenantID, workspaceID, machineID uuid.UUID) error {
	left, err := s.db.Tenant(tenantID).LeftHomes(ctx, workspaceID, &machineID)
	if err != nil {
		return fmt.Errorf("look for config homes that were left: %w", err)
	}
	for _, id := range left {
		if err := s.removeHome(ctx, g, tenantID, id); err != nil {
			return err
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

package conversation

import (
	"path"
	"slices"
	"strings"

	"managoat/internal/refusal"
	"managoat/sandbox/guest"
)

// maxCwd bounds a working directory's path, in bytes.
const maxCwd = 1024

// cwdOf checks a launch's working directory as text: the home, a repository's mount path, or below either. A "" is the
// runtime's default. What links make of it is checked when the conversation first attaches to the machine.
func cwdOf(cwd, byDefault string, mounts []string) (string, error) {
	if cwd == "" {
		return byDefault, nil
	}
	roots := append([]string{guest.Home}, mounts...)
	clean := path.Clean(cwd)
	if len(cwd) > maxCwd || !path.IsAbs(cwd) || strings.ContainsAny(cwd, "\x00\n\r") || !slices.ContainsFunc(roots, func(root string) bool { return within(clean, root) }) {
		return "", cwdNotAllowed(cwd, roots)
	}
	return clean, nil
}

func cwdNotAllowed(cwd string, roots []string) *refusal.Refusal {
	if len(cwd) > maxCwd {
		cwd = cwd[:maxCwd] + "…"
	}
	return refusal.New(refusal.CwdNotAllowed, "%q is not a working directory of this conversation: it must be an absolute path to %s, or below.",
		cwd, strings.Join(roots, ", ")).With("roots", roots)
}

// within tells whether a clean path is a folder or lies below it.
func within(p, folder string) bool {
	return p == folder || strings.HasPrefix(p, strings.TrimSuffix(folder, "/")+"/")
}

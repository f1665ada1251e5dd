// Package files reads the disk of a workspace's machine for people: directories, files, the state of a repository, what
// changed in it, and a patch to take home. A read never wakes a machine.
//
// Paths are resolved inside the machine, by its guest and through links at each read, as the sandbox user; nothing
// here trusts a path's text. What is shown is redacted like a transcript.
package files

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
	"managoat/sandbox/guest"
)

// Sizes of what a read answers.
const (
	MaxEntries   = 2000      // of a directory, and of a repository's state
	DefaultBytes = 256 << 10 // of a file or a diff
	MaxBytes     = 4 << 20
	maxPath      = 4096 // bytes

	readTimeout = 30 * time.Second // one answer of a machine
)

// Service reads disks.
type Service struct {
	workspaces *workspace.Service
	occupants  workspace.Occupants
}

// New makes the service, which from then on is asked what lies on the disk of a machine before it parks.
func New(workspaces *workspace.Service, occupants workspace.Occupants) *Service {
	s := &Service{workspaces, occupants}
	workspaces.UseSurvey(s.survey)
	return s
}

// disk is a machine that is up, and what may be read of it.
type disk struct {
	*workspace.Up
	roots   []string
	redact  *transcript.Redactor
	gate    *transcript.Gate
	trouble func() string // what keeps the machine from answering, if anything is known
}

// open makes a workspace's disk readable and the path absolute. What lies outside of the roots by its text is refused
// here; where links lead, the guest sees.
func (s *Service) open(ctx context.Context, actor tenant.Actor, id uuid.UUID, p string) (*disk, string, error) {
	p, err := place(p)
	if err != nil {
		return nil, "", err
	}
	up, err := s.workspaces.Peek(ctx, actor.TenantID, id)
	if err != nil {
		return nil, "", err
	}
	d, err := s.disk(ctx, actor.TenantID, up)
	if err != nil {
		return nil, "", err
	}
	if !d.within(p) {
		return nil, "", d.refuse(&guest.FileError{Code: guest.ErrOutside, Path: p}, p)
	}
	return d, p, nil
}

// disk is what may be read of a machine that is up, and what is masked of it.
func (s *Service) disk(ctx context.Context, tenantID uuid.UUID, up *workspace.Up) (*disk, error) {
	live, err := s.occupants.LiveDirs(ctx, tenantID, up.WorkspaceID)
	if err != nil {
		return nil, fmt.Errorf("look for the conversations' directories: %w", err)
	}
	redact, err := s.redactor(ctx, tenantID, up.WorkspaceID, up.Masks)
	if err != nil {
		return nil, err
	}
	d := &disk{Up: up, roots: []string{guest.Home}, redact: redact, gate: transcript.NewGate(redact), trouble: func() string {
		return s.workspaces.Trouble(context.WithoutCancel(ctx), tenantID, up.MachineID)
	}}
	for _, root := range slices.Concat(up.Repositories, live) {
		if !slices.Contains(d.roots, root) {
			d.roots = append(d.roots, root)
		}
	}
	return d, nil
}

// redactor masks what a workspace masks, and the credentials of its live conversations.
func (s *Service) redactor(ctx context.Context, tenantID, id uuid.UUID, masks []secret.Value) (*transcript.Redactor, error) {
	live, err := s.occupants.LiveSecrets(ctx, tenantID, id)
	if err != nil {
		return nil, fmt.Errorf("look for the conversations' credentials: %w", err)
	}
	return transcript.NewRedactor(slices.Concat(masks, live)...), nil
}

// place makes a path absolute. A relative one starts at the home.
func place(p string) (string, error) {
	if strings.ContainsRune(p, 0) || len(p) > maxPath || !utf8.ValidString(p) {
		return "", refusal.New(refusal.InvalidPath, "A path is UTF-8 text of at most %d bytes without NUL.", maxPath)
	}
	if !path.IsAbs(p) {
		p = path.Join(guest.Home, p)
	}
	return path.Clean(p), nil
}

// unreachable is the refusal of a machine that did not answer a read.
func (d *disk) unreachable(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if trouble := d.trouble(); trouble != "" {
		return refusal.New(refusal.SandboxUnreachable, "The machine does not answer. %s", trouble).RetryAfter(readTimeout)
	}
	return fmt.Errorf("%w (%w)", machine.Unreachable(err), err)
}

// refuse turns what the guest answers into what people read.
func (d *disk) refuse(err error, p string) error {
	var f *guest.FileError
	if !errors.As(err, &f) {
		return d.unreachable(err)
	}
	p = d.gate.OneLine(p, maxPath)
	switch f.Code {
	case guest.ErrNotFound:
		return refusal.New(refusal.PathNotFound, "There is nothing at %s.", p)
	case guest.ErrNotADir:
		return refusal.New(refusal.NotADirectory, "%s is not a directory.", p)
	case guest.ErrIsADir:
		return refusal.New(refusal.IsADirectory, "%s is a directory.", p)
	case guest.ErrUnreadable:
		return refusal.New(refusal.PathUnreadable, "The sandbox user may not read %s.", p)
	case guest.ErrOutside:
		return refusal.New(refusal.PathOutside, "%s lies outside of what may be read: %s.", p, strings.Join(d.roots, ", ")).With("roots", d.roots)
	case guest.ErrBadPath:
		return refusal.New(refusal.InvalidPath, "%s cannot be a path.", p)
	}
	return fmt.Errorf("read %s: %w", p, err)
}

// Listing is a directory.
type Listing struct {
	Path      string  `json:"path"`
	Entries   []Entry `json:"entries" doc:"directories first, then by name"`
	Truncated bool    `json:"truncated" doc:"the directory holds more"`
}

// Entry of a directory.
type Entry struct {
	Name       string    `json:"name"`
	Type       string    `json:"type" enum:"file,directory,symlink,other"`
	Size       int64     `json:"size"`
	Mode       string    `json:"mode" doc:"as ls shows it"`
	ModifiedAt time.Time `json:"modified_at"`
	Target     string    `json:"target,omitempty" doc:"of a symlink, as written"`
}

// Files lists a directory.
func (s *Service) Files(ctx context.Context, actor tenant.Actor, id uuid.UUID, p string) (Listing, error) {
	d, p, err := s.open(ctx, actor, id, p)
	if err != nil {
		return Listing{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	entries, more, err := d.Guest.List(ctx, d.roots, p, MaxEntries)
	if err != nil {
		return Listing{}, d.refuse(err, p)
	}
	l := Listing{Path: d.gate.String(p), Entries: make([]Entry, len(entries)), Truncated: more}
	for i, e := range entries {
		l.Entries[i] = Entry{
			Name: d.gate.String(e.Name), Type: e.Type, Size: e.Size, Mode: e.Mode.String(), ModifiedAt: e.ModTime.UTC(), Target: d.gate.String(e.Target),
		}
	}
	return l, nil
}

// Content is a file, or its start.
type Content struct {
	Path      string `json:"path"`
	Size      int64  `json:"size" doc:"of the whole file"`
	Encoding  string `json:"encoding" enum:"utf-8,base64"`
	Content   string `json:"content"`
	Truncated bool   `json:"truncated" doc:"the file is longer than the content"`
}

// File reads a file: at most maxBytes of it (0: DefaultBytes), held to MaxBytes.
func (s *Service) File(ctx context.Context, actor tenant.Actor, id uuid.UUID, p string, maxBytes int64) (Content, error) {
	d, p, err := s.open(ctx, actor, id, p)
	if err != nil {
		return Content{}, err
	}
	limit := clamp(maxBytes)
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	data, size, err := d.Guest.ReadFile(ctx, d.roots, p, limit+int64(d.redact.Longest()))
	if err != nil {
		return Content{}, d.refuse(err, p)
	}
	shown, cut := d.cut(data, limit)
	// A file that grows or shrinks while it is read: what was not read is not claimed.
	c := Content{Path: d.gate.String(p), Size: max(size, int64(len(data))), Truncated: cut || size > int64(len(data))}
	if text(data) {
		c.Encoding, c.Content = "utf-8", string(trimRune(shown))
	} else {
		c.Encoding, c.Content = "base64", base64.StdEncoding.EncodeToString(shown)
	}
	return c, nil
}

func clamp(n int64) int64 {
	if n <= 0 {
		return DefaultBytes
	}
	return min(n, MaxBytes)
}

// cut redacts data and keeps what its first limit bytes are. data holds more than that, where there is more, so that a
// secret which the cut would halve is still known for one: the two redactions differ from its first byte on.
func (d *disk) cut(data []byte, limit int64) (shown []byte, cut bool) {
	whole := d.redact.Bytes(data)
	if int64(len(data)) <= limit {
		return whole, false
	}
	part := d.redact.Bytes(data[:limit])
	n := 0
	for n < len(part) && n < len(whole) && part[n] == whole[n] {
		n++
	}
	return part[:n], true
}

// text tells whether data can be shown as it is: UTF-8 (but for a last character that was cut) without NUL.
func text(data []byte) bool {
	return utf8.Valid(trimRune(data)) && !bytes.ContainsRune(data, 0)
}

// trimRune takes off the start of a character that the end cut.
func trimRune(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return b[:len(b)-n]
			}
			break
		}
	}
	return b
}

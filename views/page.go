package views

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// State is what a thing is in, as a person tells states apart: each has a shape, a colour and, in a Badge,
// a word.
type State string

// The states. Their values are stable: they name the shapes of component Mark.
const (
	StateDone    State = "done"    // ✓ ended well
	StateReady   State = "ready"   // ● can be used now
	StateRunning State = "running" // ◐ something happens now
	StateWaiting State = "waiting" // ◌ something must happen first
	StateStale   State = "stale"   // ▲ works, and is behind
	StateFailed  State = "failed"  // ✕ ended badly
	StateParked  State = "parked"  // ‖ asleep, wakes on use
	StateStopped State = "stopped" // ■ ended by someone before it was done
	StateOff     State = "off"     // ○ not yet, not any more, or not at all
)

// class is the state's colour role in the stylesheet.
func (s State) class() string {
	switch s {
	case StateDone, StateReady:
		return "ok"
	case StateRunning:
		return "run"
	case StateWaiting:
		return "wait"
	case StateStale:
		return "warn"
	case StateFailed:
		return "fail"
	}
	return "off"
}

// Badge is a state with its word and, when Since is set, a clock that counts from then.
type Badge struct {
	State State
	Label string    // "ready", "turn 4"
	Since time.Time // zero: no clock
}

// Link is a name that leads somewhere; without a URL it is only the name.
type Link struct {
	Name string
	URL  string
}

// Page is what every page of a signed-in person shares.
type Page struct {
	Title   string // of the document; the frame adds the product's name
	Section string // which entry of the navigation is current: "workspaces"
	Now     time.Time
	Account string
	Email   string
	Flash   *Flash // what came of the last action, after a redirect
	Stream  string // URL of the page's stream, with its cursor; "" when nothing on it is live
}

// Flash says what came of an action.
type Flash struct {
	State State
	Text  string
}

// Problem is a refusal or a failure as a person reads it: what, why, what to do.
type Problem struct {
	Code      string // the stable code of the refusal: "workspace_not_failed"
	Message   string // one sentence with the next step
	RequestID string
}

// Errors are the reasons a form was refused: by the name of the field, as in the API ("packages.apt",
// "repositories[0].url"); what belongs to no field stands under "".
type Errors map[string]string

// Option is one entry of a select. One that cannot be chosen says why in its label.
type Option struct {
	Value, Label string
	Disabled     bool
}

// Pager leads to the neighbouring pages of a list; "" when there is none.
type Pager struct {
	Newer, Older string
}

// section is an entry of the navigation.
type section struct {
	key, name, url, icon string
	letter               string // after g
}

// sections lists what exists; an entry appears here with the page it leads to.
var sections = []section{
	{"home", "Home", "/", "home", "h"},
	{"workspaces", "Workspaces", "/workspaces", "workspace", "w"},
	{"conversations", "Conversations", "/conversations", "conversation", "c"},
	{"agents", "Agents", "/agents", "agent", "a"},
	{"environments", "Environments", "/environments", "environment", "e"},
	{"vaults", "Vaults", "/vaults", "vault", "v"},
	{"audit", "Audit", "/audit", "audit", "l"},
	{"settings", "Settings", "/settings", "settings", "s"},
}

// HTMXConfig is htmx's configuration, read from a meta element: only our one extension; no stylesheet of its
// own; no history cache, since pages may show secrets once; the open state of details is the person's; quick
// reconnects.
const HTMXConfig = `{"extensions":"sse","includeIndicatorCSS":false,"history":false,"morphIgnore":["data-htmx-powered","open"],"sse":{"reconnectDelay":300,"reconnectMaxDelay":5000}}`

// Elapsed is how long something has been running, as a clock: "0:42", "1:02:03". app.js counts on with the
// same rule.
func Elapsed(d time.Duration) string {
	s := int(max(d, 0) / time.Second)
	if s < 3600 {
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}

// Took is how long something lasted: "12 ms", "3.4 s", "1 min 12 s", "2 h 05 min".
func Took(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < time.Minute:
		return strconv.FormatFloat(float64(d/(100*time.Millisecond))/10, 'f', 1, 64) + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}

// soon is how far ahead a time may lie and still be now: clocks differ.
const soon = 5 * time.Second

// Ago is how long ago something was, seen from now: "just now", "3 min ago", "2 h ago", "5 d ago"; the
// future reads "in 3 min". app.js keeps it true with the same rule.
func Ago(now, t time.Time) string {
	d := now.Sub(t)
	s := int(d.Abs() / time.Second)
	if s < 60 {
		if d < -soon {
			return "in a minute"
		}
		return "just now"
	}
	n, unit := s/86400, "d"
	switch {
	case s < 3600:
		n, unit = s/60, "min"
	case s < 86400:
		n, unit = s/3600, "h"
	}
	if d < 0 {
		return fmt.Sprintf("in %d %s", n, unit)
	}
	return fmt.Sprintf("%d %s ago", n, unit)
}

// Size is a number of bytes: "312 B", "1.4 GB". Units are powers of 1,000, as df -H prints.
func Size(bytes int64) string {
	if bytes < 1000 {
		return strconv.FormatInt(bytes, 10) + " B"
	}
	value, unit := float64(bytes), ""
	for _, unit = range []string{"kB", "MB", "GB", "TB"} {
		value /= 1000
		if value < 999.95 {
			break
		}
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + " " + unit
}

// Count writes a number with its thousands apart: "18,204".
func Count[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if n < 0 {
		sign, s = "−", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// Plural is a count with its noun: "1 file", "3 files".
func Plural[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Count(n) + " " + noun + "s"
}

// exact is a time as a title shows it.
func exact(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// lastLines is the end of a text: at most n lines that are not blank at the end, and how many were left out.
func lastLines(text string, n int) (tail string, cut int) {
	text = strings.TrimRight(text, "\r\n \t")
	if text == "" {
		return "", 0
	}
	at := len(text)
	for range n {
		at = strings.LastIndexByte(text[:at], '\n')
		if at < 0 {
			return text, 0
		}
	}
	return text[at+1:], strings.Count(text[:at+1], "\n")
}

// Words makes a code that has no words of its own readable: "end_turn" is "end turn". Other text stays as it is.
func Words(code string) string {
	if strings.Trim(code, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return code
	}
	return strings.ReplaceAll(code, "_", " ")
}

// fieldWords are fields whose forms call them something else than their names say.
var fieldWords = map[string]string{
	"env_vars": "variables", "setup_timeout_seconds": "time limit of the setup script", "networking_type": "network", "networking_config": "allowed hosts",
}

// FieldWords are names of fields as their forms write them.
func FieldWords(fields []string) []string {
	out := make([]string, len(fields))
	for i, f := range fields {
		if out[i] = fieldWords[f]; out[i] == "" {
			out[i] = Words(f)
		}
	}
	return out
}

// ids and names of form controls that describe each other.
func errorID(name string) string { return "err-" + slug(name) }
func hintID(name string) string  { return "hint-" + slug(name) }

// slug makes an element id's part of any text: letters, digits, - and _ stay, all else becomes its code.
// Different texts give different slugs.
func slug(s string) string {
	var out strings.Builder
	for _, b := range []byte(s) {
		switch {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '-':
			out.WriteByte(b)
		default:
			fmt.Fprintf(&out, "_%02x", b)
		}
	}
	return out.String()
}

// exactRFC is a time as scripts read it.
func exactRFC(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

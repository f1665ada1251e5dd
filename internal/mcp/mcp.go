// Package mcp is what an agent says of the MCP servers that it uses: their form, their rules, the variables in them, and the
// forms in which runtimes read them.
package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	sdk "github.com/coder/acp-go-sdk"
	"golang.org/x/net/http/httpguts"

	"managoat/internal/refusal"
)

// Limits of an agent's servers.
const (
	MaxServers = 50
	MaxBytes   = 128 << 10 // of their JSON, all together
	MaxValues  = 256 << 10 // bytes that values put in the places of their variables, all together
	MaxURL     = 2048      // bytes
)

// Types of servers that are not started but called.
const (
	HTTP = "http"
	SSE  = "sse"
)

// Server is one MCP server: a command that the runtime starts beside itself in the machine, or an address that it calls. Every
// string of it but the type takes ${VAR}.
type Server struct {
	Type    string            `json:"type,omitempty" doc:"http or sse for a server with a url; left out for a command"`
	Command string            `json:"command,omitempty" doc:"the program that the runtime starts in the machine"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty" doc:"variables of the command"`
	URL     string            `json:"url,omitempty" doc:"http or https; a user and a password go into headers"`
	Headers map[string]string `json:"headers,omitempty"`
}

// Servers are an agent's, by name.
type Servers map[string]Server

var (
	// serverName is what every runtime makes tool names from: mcp__<server>__<tool>.
	serverName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	variable   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,199}$`)
)

// Check brings the servers into the form that is stored, and says by server and field what is wrong with them.
func (s Servers) Check(v *refusal.Validation, field string) {
	v.Check(len(s) <= MaxServers, field, "must have at most %d servers, has %d", MaxServers, len(s))
	if b, err := json.Marshal(s); err != nil || len(b) > MaxBytes {
		v.Add(field, "must have at most %d bytes of JSON, has %d", MaxBytes, len(b))
	}
	for name, server := range s {
		if !serverName.MatchString(name) {
			v.Add(field, "must have names of 1 to 64 letters, digits, _ and -, beginning with a letter or a digit")
			continue
		}
		at := field + "." + name
		if server.Type == "stdio" { // what other programs call a command
			server.Type = ""
			s[name] = server
		}
		server.checkForm(v, at)
		server.rewrite(func(where, text string) string {
			whole := true // of no variable
			_, err := expand(text, func(string) string { whole = false; return "" })
			switch {
			case err != nil:
				v.Add(at+"."+where, "%v", err)
			case whole:
				checkText(v, at, where, text)
			default: // what it becomes is seen when it is read
				v.Check(storable(text), at+"."+where, "must be UTF-8 text without NUL characters")
			}
			return text
		})
	}
}

// checkForm says whether the server is a command or an address, and nothing of both.
func (s Server) checkForm(v *refusal.Validation, at string) {
	remote := s.Type != "" || s.URL != ""
	switch {
	case remote:
		v.Check(s.Type == HTTP || s.Type == SSE, at+".type", "must be %s or %s for a server with a url, and left out for a command", HTTP, SSE)
		v.Check(s.URL != "", at+".url", "must be given for the type %s", s.Type)
		v.Check(s.Command == "" && len(s.Args) == 0 && len(s.Env) == 0, at, "must have either command, args and env, or type, url and headers")
	default:
		v.Check(strings.TrimSpace(s.Command) != "", at+".command", "must be given, or type and url")
		v.Check(len(s.Headers) == 0, at+".headers", "are for a server with a url")
	}
	for name := range s.Env {
		v.Check(variable.MatchString(name), at+".env", "must have names of variables: letters, digits and _, not beginning with a digit, at most 200 characters")
	}
	seen := map[string]bool{}
	for name := range s.Headers {
		v.Check(httpguts.ValidHeaderFieldName(name), at+".headers", "must have names of HTTP headers")
		lower := strings.ToLower(name)
		v.Check(!seen[lower], at+".headers", "has a header twice")
		seen[lower] = true
	}
}

// checkText checks a string that has no variable, or in which every variable has its value by now. What it says never repeats it.
func checkText(v *refusal.Validation, at, where, text string) {
	switch field, _, _ := strings.Cut(where, "."); {
	case !storable(text):
		v.Add(at+"."+where, "must be UTF-8 text without NUL characters")
	case field == "url":
		u, err := url.Parse(text)
		v.Check(err == nil && len(text) <= MaxURL && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil && u.Fragment == "",
			at+".url", "must be an http or https address of at most %d bytes, without user, password and fragment", MaxURL)
	case field == "headers":
		v.Check(httpguts.ValidHeaderFieldValue(text), at+"."+where, "must be one line of printable text")
	}
}

func storable(text string) bool { return utf8.ValidString(text) && !strings.Contains(text, "\x00") }

// rewrite is the server with f's answer for each of its strings, of which f is told the field.
func (s Server) rewrite(f func(field, text string) string) Server {
	out := Server{Type: s.Type, Args: slices.Clone(s.Args), Env: maps.Clone(s.Env), Headers: maps.Clone(s.Headers)}
	if s.Command != "" {
		out.Command = f("command", s.Command)
	}
	if s.URL != "" {
		out.URL = f("url", s.URL)
	}
	for i, arg := range s.Args {
		out.Args[i] = f(fmt.Sprintf("args[%d]", i), arg)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Env)) {
		out.Env[key] = f("env."+key, s.Env[key])
	}
	for _, key := range slices.Sorted(maps.Keys(s.Headers)) {
		out.Headers[key] = f("headers."+key, s.Headers[key])
	}
	return out
}

func (s Servers) rewrite(f func(name, field, text string) string) Servers {
	out := make(Servers, len(s))
	for name, server := range s {
		out[name] = server.rewrite(func(field, text string) string { return f(name, field, text) })
	}
	return out
}

var errReference = errors.New("must write ${NAME} for a variable, and $$ for a dollar sign before {")

// expand puts values in the place of ${NAME} and a dollar sign in that of $$. Any other dollar sign is one.
func expand(text string, value func(name string) string) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		switch {
		case !found:
			return b.String(), nil
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "{"):
			name, after, closed := strings.Cut(rest[1:], "}")
			if !closed || !variable.MatchString(name) {
				return "", errReference
			}
			b.WriteString(value(name))
			text = after
		default:
			b.WriteByte('$')
			text = rest
		}
	}
}

// Resolve puts values in the place of the variables. missing names all that have none, sorted; problems say what is wrong with
// what came out, by server and field, and never what it is. A long value that is named often stays out from MaxValues on.
func (s Servers) Resolve(value func(name string) (string, bool)) (resolved Servers, missing []string, problems error) {
	none, size := map[string]bool{}, 0
	var v refusal.Validation
	resolved = s.rewrite(func(server, field, text string) string {
		before := size
		out, err := expand(text, func(name string) string {
			val, ok := value(name)
			if !ok {
				none[name] = true
			}
			if size += len(val); size > MaxValues {
				return ""
			}
			return val
		})
		if before <= MaxValues && size > MaxValues {
			v.Add(server+"."+field, "makes the values of all variables larger than %d bytes, all together", MaxValues)
		}
		if err != nil {
			v.Add(server+"."+field, "%v", err)
		} else if len(none) == 0 {
			checkText(&v, server, field, out)
		}
		return out
	})
	return resolved, slices.Sorted(maps.Keys(none)), v.Err()
}

// escaped is a dollar sign for programs that expand ${NAME:-default} in what they read. Nothing sets the variable: names that
// begin so are reserved.
const escaped = "${MANAGOAT_DOLLAR:-$}"

// ForFile is how resolved servers are written for a program that would expand variables in them once more.
func (s Servers) ForFile() Servers {
	return s.rewrite(func(_, _, text string) string { return strings.ReplaceAll(text, "$", escaped) })
}

// ForSession is how the Agent Client Protocol says them, by name.
func (s Servers) ForSession() []sdk.McpServer {
	out := make([]sdk.McpServer, 0, len(s))
	for _, name := range slices.Sorted(maps.Keys(s)) {
		server := s[name]
		headers := []sdk.HttpHeader{}
		for _, key := range slices.Sorted(maps.Keys(server.Headers)) {
			headers = append(headers, sdk.HttpHeader{Name: key, Value: server.Headers[key]})
		}
		switch server.Type {
		case HTTP:
			out = append(out, sdk.McpServer{Http: &sdk.McpServerHttpInline{Type: HTTP, Name: name, Url: server.URL, Headers: headers}})
		case SSE:
			out = append(out, sdk.McpServer{Sse: &sdk.McpServerSseInline{Type: SSE, Name: name, Url: server.URL, Headers: headers}})
		default:
			env := []sdk.EnvVariable{}
			for _, key := range slices.Sorted(maps.Keys(server.Env)) {
				env = append(env, sdk.EnvVariable{Name: key, Value: server.Env[key]})
			}
			out = append(out, sdk.McpServer{Stdio: &sdk.McpServerStdio{Name: name, Command: server.Command, Args: append([]string{}, server.Args...), Env: env}})
		}
	}
	return out
}

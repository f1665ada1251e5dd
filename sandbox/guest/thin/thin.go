// Package thin is the managoat command inside a machine: it calls the API of the server that runs the machine,
// as the conversation that MANAGOAT_TOKEN belongs to. It speaks HTTP/1.0 over the one plain connection there is,
// because a whole HTTP client would triple the guest's binary.
package thin

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"managoat/sandbox/guest"
)

// Name is the name of the guest's binary in this mode.
const Name = "managoat"

// dialTimeout is how long the guest may take to find the egress process, and a little more.
const dialTimeout = 15 * time.Second

const usage = `managoat calls the server that runs this machine, as the conversation it belongs to.

  managoat me                        who this conversation is
  managoat api METHOD PATH [BODY]    any call that a conversation may make; BODY is JSON, or - for standard input

It uses MANAGOAT_TOKEN and MANAGOAT_BASE_URL, which every conversation has in its environment.
`

// Main runs one command and exits: 0 for an answer below 400, 1 for others, 2 when nothing was asked.
func Main(args []string) {
	method, path, body, err := parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "managoat: %v\n\n%s", err, usage)
		os.Exit(2)
	}
	if method == "" {
		fmt.Print(usage)
		return
	}
	status, err := call(os.Stdout, os.Getenv("MANAGOAT_BASE_URL"), os.Getenv("MANAGOAT_TOKEN"), method, path, body)
	if err != nil {
		fmt.Fprintf(os.Stderr, "managoat: %v\n", err)
		os.Exit(1)
	}
	if status >= 400 {
		fmt.Fprintf(os.Stderr, "managoat: %s %s: the server answered %d\n", method, path, status)
		os.Exit(1)
	}
}

func parse(args []string) (method, path, body string, err error) {
	switch {
	case len(args) == 0 || args[0] == "help" || args[0] == "--help" || args[0] == "-h":
		return "", "", "", nil
	case args[0] == "me" && len(args) == 1:
		return "GET", "/api/auth/me", "", nil
	case args[0] == "api" && (len(args) == 3 || len(args) == 4):
		if method, path = strings.ToUpper(args[1]), args[2]; !strings.HasPrefix(path, "/") || strings.ContainsAny(method+path, " \r\n") {
			return "", "", "", fmt.Errorf("%q is no path", path)
		}
		if len(args) == 4 {
			body = args[3]
		}
		if body == "-" {
			raw, err := io.ReadAll(os.Stdin)
			if err != nil {
				return "", "", "", err
			}
			body = string(raw)
		}
		return method, path, body, nil
	}
	return "", "", "", fmt.Errorf("there is no command %q here", strings.Join(args, " "))
}

// call makes one request and copies the answer's body to out.
func call(out io.Writer, base, token, method, path, body string) (status int, err error) {
	if token == "" {
		return 0, fmt.Errorf("MANAGOAT_TOKEN is not set: only programs of a conversation may call the server")
	}
	host, ok := strings.CutPrefix(strings.TrimSuffix(base, "/"), "http://")
	if !ok {
		host = guest.APIHost
	}
	addr := host
	if !strings.Contains(addr, ":") {
		addr += ":80"
	}
	conn, err := net.DialTimeout("tcp", addr, dialTimeout)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s %s HTTP/1.0\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAccept: application/json\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		method, path, host, token, len(body), body)
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the server did not answer: %w", err)
	}
	f := strings.Fields(line)
	if len(f) < 2 || !strings.HasPrefix(f[0], "HTTP/1.") {
		return 0, fmt.Errorf("the server's answer cannot be understood: %q", line)
	}
	if status, err = strconv.Atoi(f[1]); err != nil {
		return 0, fmt.Errorf("the server's answer cannot be understood: %q", line)
	}
	length := int64(-1)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return status, fmt.Errorf("the server's answer broke off: %w", err)
		}
		if line = strings.TrimSpace(line); line == "" {
			break
		}
		if k, v, _ := strings.Cut(line, ":"); strings.EqualFold(k, "Content-Length") {
			if length, err = strconv.ParseInt(strings.TrimSpace(v), 10, 64); err != nil {
				return status, fmt.Errorf("the server's answer cannot be understood: %q", line)
			}
		}
	}
	if length < 0 {
		_, err = io.Copy(out, r)
	} else {
		_, err = io.CopyN(out, r, length)
	}
	return status, err
}

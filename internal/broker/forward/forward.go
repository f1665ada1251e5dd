// Package forward is the proxy of one machine: CONNECT tunnels, which stay blind from end to end, and requests in
// absolute form. Every request is judged by the policy of the token it shows, refused before anything is opened,
// and leaves one row.
package forward

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"managoat/internal/broker/journal"
	"managoat/internal/broker/rule"
	"managoat/internal/netguard"
	"managoat/internal/netguard/hostname"
)

// Grant is what a token, or a machine when there is none, may do.
type Grant struct {
	Token        *uuid.UUID // nil: the machine's own policy
	Conversation *uuid.UUID
	Policy       rule.Policy
	Decide       func(host string, port int) rule.Verdict
	Live         context.Context // ends when the token or the machine is removed, and its connections with it
}

// Internal is a name that the broker answers itself.
type Internal struct {
	Handler http.Handler   // for requests in absolute form
	Serve   func(net.Conn) // for tunnels; it owns the connection
}

// Options of a Server.
type Options struct {
	Origin journal.Origin
	// Authorize finds the grant of a token's plaintext; "" is a request without one. False: no such token.
	Authorize func(token string) (Grant, bool)
	Dial      func(ctx context.Context, addr string) (net.Conn, error) // guarded
	Internal  map[string]Internal
	Record    func(journal.Request)
}

// internalPort is where the names that the broker answers itself listen.
const internalPort = 80

// maxResponseHeader bounds the header of an answer from a plain http host, in bytes. Go's own limit is 10 MiB, for each of
// a machine's connections.
const maxResponseHeader = 256 << 10

// idlePlain is how many idle connections to plain http hosts a machine keeps, and idlePlainTimeout how long.
const (
	idlePlain        = 16
	idlePlainTimeout = 30 * time.Second
)

// Server is an http.Handler for the connections of one machine's proxy listener.
type Server struct {
	o     Options
	plain *http.Transport
}

// New makes a server.
func New(o Options) *Server {
	return &Server{o: o, plain: &http.Transport{
		DialContext:        func(ctx context.Context, _, addr string) (net.Conn, error) { return o.Dial(ctx, addr) },
		DisableCompression: true, // bytes go through as they are
		MaxIdleConns:       idlePlain,
		IdleConnTimeout:    idlePlainTimeout,

		MaxResponseHeaderBytes: maxResponseHeader,
	}}
}

// Close lets go of idle connections.
func (s *Server) Close() { s.plain.CloseIdleConnections() }

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{s: s, w: w, r: r, row: journal.NewRequest(s.o.Origin, journal.Proxy, r.Method)}
	defer x.record()
	switch {
	case r.Method == http.MethodConnect:
		x.connect()
	case r.URL.Scheme == "http" && r.URL.Host != "":
		x.relay()
	case r.URL.Scheme == "https":
		x.refuse(http.StatusBadRequest, journal.RuleProtocol, refusal{Error: "use_connect",
			Advice: "Open a tunnel with CONNECT for https; the proxy does not speak TLS for you."})
	default:
		x.refuse(http.StatusBadRequest, journal.RuleProtocol, refusal{Error: "not_a_proxy_request",
			Advice: "This is a proxy. Set HTTP_PROXY and HTTPS_PROXY instead of connecting to it."})
	}
}

// exchange is one request on its way.
type exchange struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	row   journal.Request
	grant Grant
	later bool // the row is recorded by whoever carries the tunnel
}

func (x *exchange) record() {
	if x.later {
		return
	}
	x.row.DurationMS = journal.Since(x.row.At)
	x.s.o.Record(x.row)
}

// refusal is the body of every answer that is ours. An agent reads it.
type refusal struct {
	Error        string    `json:"error"`
	Host         string    `json:"host,omitempty"`
	Port         int       `json:"port,omitempty"`
	Reason       string    `json:"reason,omitempty"`
	AllowedHosts *[]string `json:"allowed_hosts,omitempty"`
	Advice       string    `json:"advice,omitempty"`
}

func (x *exchange) refuse(status int, rule string, body refusal) {
	x.row.Decision, x.row.Rule = journal.Denied, rule
	if x.row.Error == "" {
		x.row.Error = body.Error
	}
	x.answer(status, body)
}

func (x *exchange) answer(status int, body refusal) {
	x.row.Status = status
	x.row.LatencyMS = journal.Since(x.row.At)
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings and numbers only
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)+1))
	h.Set("Cache-Control", "no-store")
	x.w.WriteHeader(status)
	x.w.Write(append(text, '\n'))
}

// authorize finds out whose request this is; when it returns false the request is answered.
func (x *exchange) authorize() bool {
	token, ok := proxyToken(x.r.Header.Get("Proxy-Authorization"))
	if ok {
		x.grant, ok = x.s.o.Authorize(token)
	}
	if !ok {
		x.w.Header().Set("Proxy-Authenticate", `Basic realm="managoat"`)
		x.refuse(http.StatusProxyAuthRequired, journal.RuleUnknownToken, refusal{Error: "proxy_token_unknown",
			Advice: "The token in the proxy URL is not, or no longer, valid in this machine. It belongs to one conversation and ends with it."})
		return false
	}
	x.row.TokenID, x.row.ConversationID = x.grant.Token, x.grant.Conversation
	return true
}

// target reads where the request goes and finds out whose it is; when it returns false the request is answered.
func (x *exchange) target(hostport, advice string) (host string, port int, ok bool) {
	host, port, err := hostname.SplitPort(hostport)
	x.row.Host, x.row.Port = host, port
	if err != nil {
		x.row.Host = hostport
	}
	if !x.authorize() {
		return "", 0, false
	}
	if err != nil {
		x.refuse(http.StatusBadRequest, rule.RuleMalformed, refusal{Error: "host_malformed", Host: hostport, Advice: advice})
		return "", 0, false
	}
	return host, port, true
}

// proxyToken reads the token out of a Proxy-Authorization header: the password, whatever the user is called. No header
// is no token; one that cannot be read is not.
func proxyToken(header string) (token string, ok bool) {
	if header == "" {
		return "", true
	}
	scheme, value, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Basic") {
		return "", false
	}
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value))
	if err != nil {
		return "", false
	}
	_, token, _ = strings.Cut(string(plain), ":")
	return token, token != ""
}

// judge asks the policy about the target; when it returns false the request is answered.
func (x *exchange) judge(host string, port int) bool {
	v := x.grant.Decide(host, port)
	x.row.Host, x.row.Port = v.Host, v.Port
	x.row.Decision, x.row.Rule = journal.Allowed, v.Rule
	if x.grant.Token == nil {
		x.row.Rule = journal.RuleMachine
	}
	if v.Allowed {
		return true
	}
	body := refusal{Error: "host_not_allowed", Host: v.Host, Port: v.Port, Reason: v.Reason, Advice: v.Advice}
	switch v.Rule {
	case rule.RulePort:
		body.Error = "port_not_allowed"
	case rule.RuleMalformed:
		body.Error = "host_malformed"
	}
	if x.grant.Policy.Type == rule.Limited {
		hosts := slices.Clone(x.grant.Policy.AllowedHosts)
		if hosts == nil {
			hosts = []string{}
		}
		body.AllowedHosts = &hosts
	}
	x.row.Error = v.Reason
	x.refuse(http.StatusForbidden, x.row.Rule, body)
	return false
}

// internal tells whether the broker answers this name itself; ok is false when the request is answered.
func (x *exchange) internal(host string, port int) (in Internal, is, ok bool) {
	in, is = x.s.o.Internal[host]
	if is && port != internalPort {
		x.row.Host, x.row.Port = host, port
		x.refuse(http.StatusForbidden, rule.RulePort, refusal{Error: "port_not_allowed", Host: host, Port: port,
			Advice: "Use http://" + host + "/ (port 80): the connection never leaves this machine's broker."})
		return in, true, false
	}
	return in, is, true
}

// unreachable answers for a dial that failed.
func (x *exchange) unreachable(err error) {
	x.row.Error = err.Error()
	var refused *netguard.Refusal
	if errors.As(err, &refused) {
		x.refuse(http.StatusForbidden, journal.RulePrivate, refusal{Error: "address_not_allowed",
			Host: x.row.Host, Port: x.row.Port, Reason: refused.Error(), Advice: refused.Advice(netguard.Machine)})
		return
	}
	x.row.Decision = journal.Failed
	x.answer(http.StatusBadGateway, refusal{Error: "upstream_unreachable", Host: x.row.Host, Port: x.row.Port,
		Reason: reason(err), Advice: "The network allows this host, but it did not answer. Check the name and port, or try again later."})
}

// errProxyAuth says that a host answered 407, which only a proxy may.
var errProxyAuth = errors.New("the host asked for proxy credentials")

// reason puts a network error into words without addresses and system calls.
func reason(err error) string {
	var resolve *netguard.ResolveError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, errProxyAuth):
		return errProxyAuth.Error()
	case errors.Is(err, context.Canceled):
		return "the request was given up"
	case errors.As(err, &resolve):
		return "the name cannot be resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "the connection timed out"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection was closed before an answer came"
	default:
		return "the host cannot be reached"
	}
}

// connect opens a tunnel.
func (x *exchange) connect() {
	host, port, ok := x.target(x.r.Host, "CONNECT names a host and a port, like example.com:443.")
	if !ok {
		return
	}
	in, internal, ok := x.internal(host, port)
	if !ok || !internal && !x.judge(host, port) {
		return
	}
	var upstream net.Conn
	var err error
	if !internal {
		if upstream, err = x.s.o.Dial(x.r.Context(), net.JoinHostPort(host, strconv.Itoa(port))); err != nil {
			x.unreachable(err)
			return
		}
	}
	client, buffered, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		if upstream != nil {
			upstream.Close()
		}
		x.unreachable(err)
		return
	}
	client.SetDeadline(time.Time{})
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered()) // what is buffered is there
	x.row.Status = http.StatusOK
	x.row.LatencyMS = journal.Since(x.row.At)
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection Established\r\n\r\n"); err != nil {
		x.row.Error = err.Error()
	}
	if internal {
		// Every request inside leaves a row of its own.
		x.later = true
		in.Serve(&prefixed{Conn: client, early: early})
		return
	}
	t := &tunnel{client: client, upstream: upstream, early: early, host: host}
	err = t.run(x.grant.Live)
	x.row.BytesOut, x.row.BytesIn = t.out, t.in
	var mismatch errServerName
	switch {
	case errors.As(err, &mismatch), errors.Is(err, errHello):
		x.row.Decision, x.row.Rule, x.row.Error = journal.Denied, journal.RuleSNI, err.Error()
	case err != nil:
		x.row.Error = err.Error()
	}
}

// prefixed is a connection of which the first bytes were read already.
type prefixed struct {
	net.Conn
	early []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.early) > 0 {
		n := copy(b, p.early)
		p.early = p.early[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// CloseWrite ends our direction.
func (p *prefixed) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// relay passes a request in absolute form on. The URL's host is the one that counts: the server took it as the
// request's Host, whatever the header said (RFC 9112 section 3.2.2).
func (x *exchange) relay() {
	target := x.r.URL.Host
	if x.r.URL.Port() == "" {
		target = strings.TrimSuffix(target, ":") + ":80"
	}
	host, port, ok := x.target(target, "Use a host name or an address in its usual form.")
	if !ok {
		return
	}
	in, internal, ok := x.internal(host, port)
	if !ok {
		return
	}
	if internal {
		x.later = true
		r := x.r.Clone(x.r.Context())
		r.URL = &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
		r.Header.Del("Proxy-Authorization")
		in.Handler.ServeHTTP(x.w, r)
		return
	}
	if !x.judge(host, port) {
		return
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	defer context.AfterFunc(x.grant.Live, cancel)()

	up := &countingBody{body: x.r.Body}
	down := &journal.Writer{ResponseWriter: x.w, Row: &x.row}
	defer func() { x.row.BytesOut = up.n.Load() }()
	proxy := httputil.ReverseProxy{
		Transport:     x.s.plain,
		FlushInterval: -1, // every write passes at once: streams must not wait for a buffer
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Host = net.JoinHostPort(host, strconv.Itoa(port))
			p.Out.Host = p.In.Host
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { x.unreachable(err) },
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode == http.StatusProxyAuthRequired {
				// A host that plays proxy must not get at the token that a client would show next.
				return errProxyAuth
			}
			return nil
		},
		ErrorLog: journal.NoLog,
	}
	defer func() {
		// The relay gives up in the middle of a body by a panic that closes the connection; the row is told first.
		if p := recover(); p != nil {
			x.row.Error = "the answer broke off"
			panic(p)
		}
	}()
	r := x.r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = up
	}
	proxy.ServeHTTP(down, r)
}

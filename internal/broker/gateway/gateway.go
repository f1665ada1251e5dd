package gateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"managoat/internal/broker/journal"
	"managoat/internal/netguard"
)

// Sizes and times of the gateway.
const (
	MaxBody     = 32 << 20         // bytes of one request
	heldMemory  = 2 * MaxBody      // bytes of requests, and of answers, that one machine may make us hold at once
	bodyTimeout = 2 * time.Minute  // to send a request's body
	answerAfter = 15 * time.Minute // until the provider's answer begins: a long one that does not stream
	streamIdle  = 10 * time.Minute // between two pieces of an answer
	copyBuffer  = 32 << 10         // bytes
)

// oauthBeta is what Anthropic's API asks for beside a subscription's token.
const oauthBeta = "oauth-2025-04-20"

// Grant is what a token may do here.
type Grant struct {
	Token         uuid.UUID
	Conversation  uuid.UUID
	Credential    *Credential // nil: no model calls
	AllowedModels []string    // nil: any
	Live          context.Context
}

// Options of a Server.
type Options struct {
	Origin    journal.Origin
	Name      string                           // the host name it answers for, for rows about what goes nowhere
	Authorize func(token string) (Grant, bool) // the grant of a token's plaintext
	Transport func() http.RoundTripper         // guarded, as of now
	Request   func(journal.Request)
	Usage     func(journal.Usage)
}

// Server is an http.Handler for the model calls of one machine.
type Server struct {
	o                 Options
	requests, answers *semaphore.Weighted
}

// New makes a server.
func New(o Options) *Server {
	return &Server{o, semaphore.NewWeighted(heldMemory), semaphore.NewWeighted(heldMemory)}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{s: s, w: w, r: r, provider: guessProvider(r), row: journal.NewRequest(s.o.Origin, journal.Model, r.Method)}
	x.row.Host, x.row.Port, x.row.Rule = s.o.Name, 80, journal.RuleGateway
	defer func() {
		s.requests.Release(x.held)
		x.row.DurationMS = journal.Since(x.row.At)
		s.o.Request(x.row)
	}()
	x.serve()
}

// exchange is one call on its way.
type exchange struct {
	s        *Server
	w        http.ResponseWriter
	r        *http.Request
	row      journal.Request
	provider string // whose error shape a refusal has
	token    string
	grant    Grant
	call     call
	model    string
	body     []byte
	held     int64 // bytes of the machine's share that are ours
}

func (x *exchange) serve() {
	if x.answersItself() || !x.authorize() || !x.admit() || !x.readBody() || !x.admitModel() {
		return
	}
	x.forward()
}

// answersItself handles what runtimes ask the host of their base URL besides model calls: nothing of it needs a
// key.
func (x *exchange) answersItself() bool {
	switch {
	case x.r.URL.Path == "/" && (x.r.Method == http.MethodHead || x.r.Method == http.MethodGet):
		x.row.Decision, x.row.Status = journal.Allowed, http.StatusOK
		x.w.WriteHeader(http.StatusOK)
	case strings.HasPrefix(x.r.URL.Path, "/api/"): // claude's policy, settings and event endpoints
		x.refuse(http.StatusNotFound, "not_a_model_call", "This is a model gateway; it answers model calls only.")
	default:
		return false
	}
	x.row.LatencyMS = journal.Since(x.row.At)
	return true
}

// guessProvider finds the error shape a client expects before its token says so.
func guessProvider(r *http.Request) string {
	switch {
	case r.Header.Get("X-Goog-Api-Key") != "", r.URL.Query().Has("key"), strings.HasPrefix(r.URL.Path, "/v1beta/"):
		return Google
	case r.Header.Get("X-Api-Key") != "", r.Header.Get("Anthropic-Version") != "", strings.HasPrefix(r.URL.Path, "/v1/messages"):
		return Anthropic
	default:
		return OpenAI
	}
}

// shown lists the places where clients put their key.
func shown(r *http.Request) []string {
	bearer := r.Header.Get("Authorization")
	if scheme, value, ok := strings.Cut(bearer, " "); ok && strings.EqualFold(scheme, "Bearer") {
		bearer = strings.TrimSpace(value)
	}
	return []string{r.Header.Get("X-Api-Key"), bearer, r.Header.Get("X-Goog-Api-Key"), r.URL.Query().Get("key")}
}

func (x *exchange) authorize() bool {
	for _, token := range shown(x.r) {
		if token == "" {
			continue
		}
		if grant, ok := x.s.o.Authorize(token); ok {
			x.token, x.grant = token, grant
			x.row.TokenID, x.row.ConversationID = &grant.Token, &grant.Conversation
			if grant.Credential == nil {
				return x.refuse(http.StatusForbidden, "no_model_credential", "This conversation has no model credential.")
			}
			x.provider = grant.Credential.Provider
			return true
		}
	}
	x.row.Rule = journal.RuleUnknownToken
	return x.refuse(http.StatusUnauthorized, "gateway_token_unknown",
		"The model gateway does not know this key. It takes the one that Managoat put into this conversation's environment; real keys never enter a machine, and this one ends with its conversation.")
}

// admit looks the call up.
func (x *exchange) admit() bool {
	cred := x.grant.Credential
	path := x.r.URL.Path
	call, model, ok := find(cred.Provider, x.r.Method, path)
	switch {
	case !ok && cred.Source == Pool, ok && cred.Source == Pool && !call.pool:
		return x.refuse(http.StatusForbidden, "pool_call_not_allowed", "The shared key of this instance is for generation calls only. Add a key of your own to use this call.")
	case !ok:
		return x.refuse(http.StatusForbidden, "model_call_not_allowed", "The model gateway does not pass this call on; it knows the "+cred.Provider+" API's model calls.")
	}
	x.call, x.model = call, model
	return true
}

// readBody takes the request's body in, within what the machine may hold.
func (x *exchange) readBody() bool {
	if x.r.Method == http.MethodGet {
		return true
	}
	size := x.r.ContentLength
	if size > MaxBody {
		return x.refuse(http.StatusRequestEntityTooLarge, "request_too_large", tooLarge)
	}
	if size < 0 {
		size = MaxBody
	}
	if err := x.s.requests.Acquire(x.r.Context(), size); err != nil {
		return x.giveUp(err)
	}
	x.held = size
	control := http.NewResponseController(x.w)
	control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, MaxBody))
	control.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return x.refuse(http.StatusRequestEntityTooLarge, "request_too_large", tooLarge)
	case err != nil:
		return x.giveUp(err)
	}
	// What a body without a length did not use is free again before its answer streams.
	x.s.requests.Release(x.held - int64(len(body)))
	x.held = int64(len(body))
	x.body = body
	x.row.BytesOut = int64(len(body))
	return true
}

var tooLarge = fmt.Sprintf("A model call may have %d MiB at most.", MaxBody>>20)

// admitModel checks the model and what the body asks for.
func (x *exchange) admitModel() bool {
	if x.r.Method == http.MethodGet {
		return true
	}
	found, err := fields(x.body)
	if err != nil {
		return x.refuse(http.StatusBadRequest, "invalid_body", "The body must be a JSON object in which no field stands twice.")
	}
	if x.model == "" {
		x.model = textField(x.body, found, "model")
	}
	if x.grant.AllowedModels != nil && !slices.Contains(x.grant.AllowedModels, x.model) {
		return x.refuse(http.StatusForbidden, "model_not_allowed",
			fmt.Sprintf("The model %q is not open to this conversation. Open are: %s.", x.model, strings.Join(x.grant.AllowedModels, ", ")))
	}
	if x.grant.Credential.Source == Pool {
		for _, name := range poolForbidden[x.call.name] {
			if set(x.body, found, name) {
				return x.refuse(http.StatusForbidden, "pool_call_not_allowed",
					fmt.Sprintf("The field %q needs a key of your own: it names something of the key's account.", name))
			}
		}
	}
	// Compatible servers are not asked: some refuse the field.
	if x.call.name == "chat_completions" && x.grant.Credential.Provider == OpenAI {
		x.body = withUsage(x.body, found)
	}
	return true
}

// request makes the call as the provider gets it: the real key in, the machine's token nowhere.
func (x *exchange) request(ctx context.Context) (*http.Request, error) {
	cred := x.grant.Credential
	base := cred.BaseURL
	if base == "" {
		base = baseURLs[cred.Provider]
	}
	target, err := url.Parse(base)
	if err != nil || target.Host == "" || target.Scheme != "http" && target.Scheme != "https" {
		return nil, errors.New("the credential's base URL is not an http(s) URL")
	}
	query := x.r.URL.Query()
	query.Del("key")
	for name, values := range query {
		if slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, x.token) }) {
			query.Del(name)
		}
	}
	target.Path = upstreamPath(cred.Provider, target.Path, x.r.URL.Path)
	target.RawPath, target.RawQuery, target.User, target.Fragment = "", query.Encode(), nil, ""

	var body io.Reader
	if x.body != nil {
		body = bytes.NewReader(x.body)
	}
	out, err := http.NewRequestWithContext(ctx, x.r.Method, target.String(), body)
	if err != nil {
		return nil, errors.New("the credential's base URL cannot be called")
	}
	for name, values := range x.r.Header {
		if !dropped(name) && !slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, x.token) }) {
			out.Header[name] = slices.Clone(values)
		}
	}
	for name := range strings.SplitSeq(x.r.Header.Get("Connection"), ",") {
		out.Header.Del(strings.TrimSpace(name))
	}
	out.Header.Set("Accept-Encoding", "identity") // so that it can be read as it streams
	key := cred.Key.Reveal()
	switch {
	case cred.Provider == Anthropic && cred.Kind == OAuthToken:
		out.Header.Set("Authorization", "Bearer "+key)
		beta := strings.Join(out.Header.Values("Anthropic-Beta"), ",")
		if !strings.Contains(beta, oauthBeta) {
			beta = strings.TrimPrefix(beta+","+oauthBeta, ",")
		}
		out.Header.Set("Anthropic-Beta", beta)
	case cred.Provider == Anthropic:
		out.Header.Set("X-Api-Key", key)
	case cred.Provider == Google:
		out.Header.Set("X-Goog-Api-Key", key)
	default:
		out.Header.Set("Authorization", "Bearer "+key)
	}
	return out, nil
}

// dropped tells which headers never go on: credentials, those of one connection, and those that tell of the
// machine's inside.
func dropped(name string) bool {
	switch name {
	case "Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Cookie", "Set-Cookie",
		"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Content-Length", "Expect", "Accept-Encoding", "Forwarded", "Via", "Alt-Svc":
		return true
	}
	return strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "X-Managoat-")
}

// forward makes the call and streams its answer back.
func (x *exchange) forward() {
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	defer context.AfterFunc(x.grant.Live, cancel)()
	out, err := x.request(ctx)
	if err != nil {
		x.refuse(http.StatusBadGateway, "base_url_invalid", err.Error()+"; it is set with the credential.")
		return
	}
	cred := x.grant.Credential
	x.row.Host = out.URL.Hostname()
	x.row.Port = map[string]int{"http": 80, "https": 443}[out.URL.Scheme]
	if port, err := strconv.Atoi(out.URL.Port()); err == nil {
		x.row.Port = port
	}
	x.row.Decision, x.row.CredentialKeys = journal.Injected, []string{cred.CredentialID.String()}
	usage := journal.Usage{
		ID: uuid.Must(uuid.NewV7()), At: x.row.At,
		TenantID: x.row.TenantID, WorkspaceID: x.row.WorkspaceID, MachineID: x.row.MachineID,
		ConversationID: x.grant.Conversation, TokenID: x.grant.Token, CredentialID: cred.CredentialID,
		Source: cred.Source, Provider: cred.Provider, Call: x.call.name, ModelRequested: x.model, Completeness: journal.None,
	}
	if x.call.name != "" {
		defer func() {
			usage.LatencyMS = journal.Since(usage.At)
			x.s.o.Usage(usage)
		}()
	}
	overdue := time.AfterFunc(answerAfter, cancel)
	defer overdue.Stop()
	resp, err := x.s.o.Transport().RoundTrip(out)
	if err != nil {
		x.unreachable(err)
		usage.Error = x.row.Error
		return
	}
	defer resp.Body.Close()
	usage.Status = resp.StatusCode
	if resp.StatusCode >= 300 {
		usage.Error = fmt.Sprintf("http_%d", resp.StatusCode)
	}
	x.relay(resp, overdue, &usage)
}

// relay streams the answer to the machine, the key scrubbed out, and meters it.
func (x *exchange) relay(resp *http.Response, idle *time.Timer, usage *journal.Usage) {
	answer := io.Reader(resp.Body)
	encoding := strings.ToLower(resp.Header.Get("Content-Encoding"))
	switch encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		answer = &gunzip{src: resp.Body}
	default:
		// It was asked for none. What cannot be read can be neither scrubbed nor metered, so it does not pass.
		usage.Error = "encoding_unsupported"
		x.fail(http.StatusBadGateway, "encoding_unsupported", "The provider answered in an encoding it was not asked for.")
		return
	}
	scrub := newScrubber(x.grant.Credential.Key.Reveal())
	h := x.w.Header()
	for name, values := range resp.Header {
		if dropped(name) && name != "Content-Length" {
			continue
		}
		for _, v := range values {
			h.Add(name, scrub.text(v))
		}
	}
	if answer != resp.Body {
		h.Del("Content-Encoding")
		h.Del("Content-Length")
	}
	x.row.Status, x.row.LatencyMS = resp.StatusCode, journal.Since(x.row.At)
	x.w.WriteHeader(resp.StatusCode)
	control := http.NewResponseController(x.w)
	control.Flush() // the status is news too

	memory := x.s.answers
	if x.grant.Credential.Source == Pool {
		// The operator's provider is trusted not to flood us, and no machine may make its answers go unmetered.
		memory = nil
	}
	m := newMeter(x.provider, resp.Header.Get("Content-Type"), memory)
	defer m.close()
	write := func(p []byte) error {
		if len(p) == 0 {
			return nil
		}
		if usage.FirstByteMS == 0 {
			usage.FirstByteMS = journal.Since(usage.At)
		}
		m.add(p)
		n, err := x.w.Write(p)
		x.row.BytesIn += int64(n)
		if err != nil {
			return errMachineGone
		}
		return control.Flush()
	}
	err := pump(answer, scrub, write, func() { idle.Reset(streamIdle) })
	m.end(err == nil, usage)
	if err != nil {
		x.row.Error = breakReason(err)
		usage.Error = x.row.Error
		panic(http.ErrAbortHandler) // the status is out: only the connection can still say that the answer is not whole
	}
}

// errMachineGone says that the runtime hung up.
var errMachineGone = errors.New("the runtime closed the connection")

func breakReason(err error) string {
	switch {
	case errors.Is(err, errMachineGone):
		return "client_closed"
	case errors.Is(err, context.Canceled):
		return "ended" // by the runtime, by us, or after streamIdle without a byte
	default:
		return "answer_broke_off"
	}
}

// pump copies until the end of src; every piece is written as it comes.
func pump(src io.Reader, scrub *scrubber, write func([]byte) error, tick func()) error {
	buf := make([]byte, copyBuffer)
	for {
		tick()
		n, err := src.Read(buf)
		if n > 0 {
			if err := write(scrub.next(buf[:n])); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return write(scrub.end())
		}
		if err != nil {
			return err
		}
	}
}

// gunzip opens the stream at the first read, not before: a header that is not there yet must not hold the status.
type gunzip struct {
	src io.Reader
	zr  *gzip.Reader
}

func (g *gunzip) Read(p []byte) (n int, err error) {
	if g.zr == nil {
		if g.zr, err = gzip.NewReader(g.src); err != nil {
			return 0, err
		}
	}
	return g.zr.Read(p)
}

// unreachable answers for a call that had no answer.
func (x *exchange) unreachable(err error) {
	var refused *netguard.Refusal
	switch {
	case errors.As(err, &refused):
		x.refuse(http.StatusForbidden, "model_address_not_allowed", strings.TrimSpace("The credential's base URL is refused: "+refused.Error()+". "+refused.Advice(netguard.Model)))
	case x.r.Context().Err() != nil:
		x.giveUp(errMachineGone)
	default:
		x.fail(http.StatusBadGateway, "upstream_unreachable", "The model provider at "+net.JoinHostPort(x.row.Host, strconv.Itoa(x.row.Port))+" does not answer.")
	}
}

// giveUp ends a call whose sender is gone.
func (x *exchange) giveUp(err error) bool {
	x.row.Decision, x.row.Error = journal.Failed, breakReason(err)
	return false
}

// fail answers for something that was allowed and did not work.
func (x *exchange) fail(status int, code, message string) bool {
	x.refuse(status, code, message)
	x.row.Decision = journal.Failed
	return false
}

// refuse answers in the shape of the provider's own errors, so that every runtime shows the text. It returns false.
func (x *exchange) refuse(status int, code, message string) bool {
	x.row.Decision, x.row.Status, x.row.Error = journal.Denied, status, code
	x.row.LatencyMS = journal.Since(x.row.At)
	text, err := json.Marshal(errorBody(x.provider, status, code, message))
	if err != nil {
		panic(err) // strings and numbers only
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	if status < 500 {
		h.Set("X-Should-Retry", "false") // asking again cannot help; the SDKs know this header
	}
	x.w.WriteHeader(status)
	x.w.Write(text)
	return false
}

func errorBody(provider string, status int, code, message string) any {
	type object = map[string]any
	kinds := map[int][2]string{ // Anthropic's and Google's words
		http.StatusBadRequest:            {"invalid_request_error", "INVALID_ARGUMENT"},
		http.StatusUnauthorized:          {"authentication_error", "UNAUTHENTICATED"},
		http.StatusForbidden:             {"permission_error", "PERMISSION_DENIED"},
		http.StatusNotFound:              {"not_found_error", "NOT_FOUND"},
		http.StatusRequestEntityTooLarge: {"request_too_large", "INVALID_ARGUMENT"},
	}
	kind, ok := kinds[status]
	if !ok {
		kind = [2]string{"api_error", "UNAVAILABLE"}
	}
	switch provider {
	case Anthropic:
		return object{"type": "error", "error": object{"type": kind[0], "message": message, "code": code}}
	case Google:
		return object{"error": object{"code": status, "status": kind[1], "message": message, "reason": code}}
	default:
		return object{"error": object{"type": kind[0], "code": code, "message": message, "param": nil}}
	}
}

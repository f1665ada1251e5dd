package broker

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"

	"managoat/internal/broker/journal"
)

// apiKeyPrefix marks the server's API keys.
const apiKeyPrefix = "mgt_"

// apiRetryAfter is what a machine is told while the server is away, in seconds.
const apiRetryAfter = "2"

// api answers for APIHost on behalf of one machine: it passes requests that show an API key on to the server and says
// which machine they come from.
type api struct {
	origin    journal.Origin
	transport http.RoundTripper
	record    func(journal.Request)
}

// errNoServer says that no socket of the server was named.
var errNoServer = errors.New("the server has not said where it answers")

// apiTransport connects to the server's private socket, wherever that is now.
func apiTransport(socket func() string) *http.Transport {
	return &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			path := socket()
			if path == "" {
				return nil, errNoServer
			}
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	row := journal.NewRequest(a.origin, journal.API, r.Method)
	row.Host, row.Port, row.Rule, row.Decision = APIHost, 80, journal.RuleAPI, journal.Allowed
	counted := &journal.Writer{ResponseWriter: w, Row: &row}
	defer func() {
		row.DurationMS = journal.Since(row.At)
		a.record(row)
	}()
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || !strings.HasPrefix(key, apiKeyPrefix) {
		row.Decision, row.Error = journal.Denied, "api_key_required"
		apiError(counted, http.StatusUnauthorized, "api_key_required", "Send the key of MANAGOAT_TOKEN as `Authorization: Bearer …`; nothing else is accepted here.")
		return
	}
	proxy := httputil.ReverseProxy{
		Transport:     a.transport,
		FlushInterval: -1, // event streams pass as they come
		ErrorLog:      journal.NoLog,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", APIHost, APIHost
			p.Out.Header.Del("Cookie")
			for name := range p.Out.Header {
				if strings.HasPrefix(name, "X-Managoat-") || strings.HasPrefix(name, "X-Forwarded-") || name == "X-Real-Ip" {
					p.Out.Header.Del(name)
				}
			}
			p.Out.Header.Set(MachineHeader, a.origin.MachineID.String())
		},
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			row.Decision, row.Error = journal.Failed, "server_unavailable"
			counted.Header().Set("Retry-After", apiRetryAfter)
			apiError(counted, http.StatusServiceUnavailable, "server_unavailable", "Managoat's server is away, most likely for a restart. Try again in a moment.")
		},
	}
	proxy.ServeHTTP(counted, r)
}

func apiError(w http.ResponseWriter, status int, code, advice string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": code, "advice": advice})
}

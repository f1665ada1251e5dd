package inference

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"managoat/internal/input"
	"managoat/internal/netguard"
	"managoat/internal/netguard/hostname"
	"managoat/internal/refusal"
	"managoat/internal/secret"
)

// Limits of credentials.
const (
	MaxCredentials = 100  // of one account
	MaxKey         = 8192 // bytes
	MaxBaseURL     = 2048
)

// Input is what people write of a credential.
type Input struct {
	Name     string       `json:"name" doc:"1 to 200 characters, unique in the account"`
	Provider string       `json:"provider" doc:"anthropic, openai, google or openai_compatible; fixed at creation"`
	Kind     string       `json:"kind" doc:"api_key (default) or oauth_token (of a claude subscription; anthropic only)"`
	BaseURL  string       `json:"base_url" doc:"empty: the provider's own; openai_compatible needs one"`
	Key      secret.Value `json:"key" doc:"never shown again"`
	Default  bool         `json:"default" doc:"make it the one that conversations of this provider use"`
}

func (in Input) fields() []string { return append(input.Changed(Input{}, in), "key") }

func (s *Service) validate(in *Input, needsKey bool) error {
	var v refusal.Validation
	input.Name(&v, "name", &in.Name)
	v.Check(slices.Contains(Providers, in.Provider), "provider", "must be one of %s", strings.Join(Providers, ", "))
	if in.Kind == "" {
		in.Kind = APIKey
	}
	switch {
	case in.Kind != APIKey && in.Kind != OAuthToken:
		v.Add("kind", "must be %s or %s", APIKey, OAuthToken)
	case in.Kind == OAuthToken && in.Provider != Anthropic:
		v.Add("kind", "%s is for %s only", OAuthToken, Anthropic)
	}
	in.BaseURL = strings.TrimRight(strings.TrimSpace(in.BaseURL), "/")
	if in.BaseURL != "" {
		s.validateBaseURL(&v, in.BaseURL)
	} else if in.Provider == OpenAICompatible {
		v.Add("base_url", "must name the server, such as https://models.example.com/v1")
	}
	if !in.Key.Empty() {
		in.Key = secret.New(strings.TrimSpace(in.Key.Reveal()))
	}
	switch key := in.Key.Reveal(); {
	case key == "" && needsKey:
		v.Add("key", "must not be empty")
	case len(key) > MaxKey:
		v.Add("key", "must have at most %d bytes", MaxKey)
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }): // it travels in a header
		v.Add("key", "must hold no spaces, line ends or characters outside ASCII")
	}
	return v.Err()
}

func (s *Service) validateBaseURL(v *refusal.Validation, raw string) {
	const field = "base_url"
	u, err := url.Parse(raw)
	switch {
	case err != nil || len(raw) > MaxBaseURL || !utf8.ValidString(raw) || strings.ContainsAny(raw, " \t\r\n\\"):
		v.Add(field, "must be an address of at most %d characters", MaxBaseURL)
		return
	case u.User != nil || strings.ContainsAny(raw, "?#"):
		v.Add(field, "must have no user, password, query or fragment")
		return
	case u.Scheme != "https" && u.Scheme != "http":
		v.Add(field, "must begin with https://")
		return
	}
	host, err := hostname.Fold(strings.TrimSuffix(u.Host, ":"+u.Port()))
	if err != nil {
		v.Add(field, "must have a host: %s", err)
		return
	}
	port := map[string]int{"http": 80, "https": 443}[u.Scheme]
	if u.Port() != "" {
		if port, err = hostname.Port(u.Port()); err != nil {
			v.Add(field, "must have a port from 1 to 65535")
			return
		}
	}
	// A key in clear text belongs on no network but the operator's own.
	if u.Scheme == "http" && !netguard.Allows(s.allowances, netguard.Model, host, port) {
		v.Add(field, "must begin with https://, unless the operator allows model=%s:%s", host, strconv.Itoa(port))
	}
}

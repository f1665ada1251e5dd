package gateway

import (
	"net/http"
	"strings"
)

// call is one kind of request that the gateway passes on.
type call struct {
	method string
	path   string // "{model}" stands for one segment, or the part of it before what follows
	name   string // of the usage row; "" for calls that generate nothing
	pool   bool   // allowed on the operator's key too
}

// calls are all that is passed on, per provider. Whatever is not here is refused: files, batches and stored
// responses belong to the key's account, and on a shared key that is everybody's.
var calls = map[string][]call{
	Anthropic: {
		{http.MethodPost, "/v1/messages", "messages", true},
		{http.MethodPost, "/v1/messages/count_tokens", "", true},
		{http.MethodGet, "/v1/models", "", false},
		{http.MethodGet, "/v1/models/{model}", "", false},
	},
	OpenAI: {
		{http.MethodPost, "/v1/responses", "responses", true},
		{http.MethodPost, "/v1/responses/compact", "responses", true},
		{http.MethodPost, "/v1/chat/completions", "chat_completions", true},
		{http.MethodPost, "/v1/completions", "completions", true},
		{http.MethodPost, "/v1/embeddings", "embeddings", false},
		{http.MethodGet, "/v1/models", "", false},
		{http.MethodGet, "/v1/models/{model}", "", false},
	},
	Google: {
		{http.MethodPost, "/v1beta/models/{model}:generateContent", "generate_content", true},
		{http.MethodPost, "/v1beta/models/{model}:streamGenerateContent", "generate_content", true},
		{http.MethodPost, "/v1beta/models/{model}:countTokens", "", true},
		{http.MethodPost, "/v1beta/models/{model}:embedContent", "embed_content", false},
		{http.MethodPost, "/v1beta/models/{model}:batchEmbedContents", "embed_content", false},
		{http.MethodGet, "/v1beta/models", "", false},
		{http.MethodGet, "/v1beta/models/{model}", "", false},
		{http.MethodPost, "/v1/models/{model}:generateContent", "generate_content", true},
		{http.MethodPost, "/v1/models/{model}:streamGenerateContent", "generate_content", true},
		{http.MethodPost, "/v1/models/{model}:countTokens", "", true},
		{http.MethodGet, "/v1/models", "", false},
		{http.MethodGet, "/v1/models/{model}", "", false},
	},
}

// callsOf are the calls of a provider.
func callsOf(provider string) []call {
	if provider == OpenAICompatible {
		provider = OpenAI
	}
	return calls[provider]
}

// poolForbidden are the fields of a body, by call, that name something stored under the key's account or make the
// provider act elsewhere. On the operator's key they are refused unless null or false.
var poolForbidden = map[string][]string{
	"messages":         {"container", "mcp_servers"},
	"responses":        {"previous_response_id", "conversation", "background", "prompt"},
	"generate_content": {"cachedContent", "cached_content"},
}

// find looks a request up. model is what the path names, "" when the body does.
func find(provider, method, path string) (c call, model string, ok bool) {
	for _, c := range callsOf(provider) {
		if c.method != method {
			continue
		}
		if model, ok := matchPath(c.path, path); ok {
			return c, model, true
		}
	}
	return call{}, "", false
}

func matchPath(pattern, path string) (model string, ok bool) {
	before, after, named := strings.Cut(pattern, "{model}")
	if !named {
		return "", path == pattern
	}
	rest, ok := strings.CutPrefix(path, before)
	if !ok {
		return "", false
	}
	model, ok = strings.CutSuffix(rest, after)
	return model, ok && modelID(model)
}

// modelID tells whether a path's segment can be a model's id, and nothing that a server would take for more than one
// segment.
func modelID(s string) bool {
	const others = "-_.:@"
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(others, c) >= 0) {
			return false
		}
	}
	return strings.Trim(s, ".") != ""
}

// baseURLs are the providers' own.
var baseURLs = map[string]string{
	Anthropic: "https://api.anthropic.com",
	OpenAI:    "https://api.openai.com/v1",
	Google:    "https://generativelanguage.googleapis.com",
}

// upstreamPath joins a call's path to the path of a base URL. Base URLs are written with the API version, as OpenAI's
// clients want it, or without, as Anthropic's and Google's do: a base of the OpenAI kind stands for the call's
// /v1, and the others do not have their version said twice.
func upstreamPath(provider, base, path string) string {
	base = strings.TrimRight(base, "/")
	if provider == OpenAI || provider == OpenAICompatible {
		return base + strings.TrimPrefix(path, "/v1")
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return strings.TrimSuffix(base, "/"+version) + path
}

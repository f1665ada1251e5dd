package secret_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"managoat/internal/secret"
)

const plain = "s3cr3t-value-nobody-may-see"

var discard = slog.New(slog.DiscardHandler)

// holder has the secret where fmt can call no method.
type holder struct {
	Name   string
	Shown  secret.Value
	hidden secret.Value
	deep   []map[string]secret.Value
}

func holding() holder {
	v := secret.New(plain)
	return holder{Name: "x", Shown: v, hidden: v, deep: []map[string]secret.Value{{"k": v}}}
}

func TestNoVerbOfFmtPrintsASecret(t *testing.T) {
	t.Parallel()
	v := secret.New(plain)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%T", "%p", "%t", "%c", "%U", "%e", "%10.3s", "%-40v", "%w"} {
		for _, what := range []any{v, &v, holding(), []secret.Value{v}, map[string]secret.Value{"k": v}, errors.New(fmt.Sprint(v))} {
			got := fmt.Sprintf(verb, what)
			if strings.Contains(got, plain) || strings.Contains(got, fmt.Sprintf("%x", plain)) {
				t.Errorf("%s of %T prints the secret: %s", verb, what, got)
			}
		}
	}
	if got := fmt.Sprintf("%v %s %d", v, v, v); got != "[REDACTED] [REDACTED] [REDACTED]" {
		t.Errorf("masked as %q", got)
	}
}

func TestNoEncodingHoldsASecret(t *testing.T) {
	t.Parallel()
	h := holding()
	asJSON, err := json.Marshal(h)
	if err != nil || !bytes.Contains(asJSON, []byte(secret.Mask)) {
		t.Errorf("JSON is %s, %v", asJSON, err)
	}
	asXML, err := xml.Marshal(h)
	if err != nil {
		t.Error(err)
	}
	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(handler).Info("m", "v", h.Shown, "p", &h.Shown, "h", h, "g", slog.GroupValue(slog.Any("v", h.hidden)))
	}
	for _, out := range [][]byte{asJSON, asXML, log.Bytes()} {
		if bytes.Contains(out, []byte(plain)) {
			t.Errorf("holds the secret: %s", out)
		}
	}
}

// A panic with a secret, or with something that holds one, prints none of it.
func TestAPanicPrintsNoSecret(t *testing.T) {
	t.Parallel()
	if os.Getenv("PANIC_WITH") != "" {
		switch os.Getenv("PANIC_WITH") {
		case "value":
			panic(secret.New(plain))
		case "pointer":
			v := secret.New(plain)
			panic(&v)
		case "holder":
			panic(holding())
		case "error":
			panic(fmt.Errorf("it failed with %v", holding()))
		}
	}
	for _, with := range []string{"value", "pointer", "holder", "error"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAPanicPrintsNoSecret$")
		cmd.Env = append(os.Environ(), "PANIC_WITH="+with)
		out, err := cmd.CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("panic")) {
			t.Fatalf("%s: did not panic: %s", with, out)
		}
		if bytes.Contains(out, []byte(plain)) {
			t.Errorf("%s: the panic prints the secret:\n%s", with, out)
		}
	}
}

func TestASecretIsReadFromJSONAndRevealedOnRequestOnly(t *testing.T) {
	t.Parallel()
	var in struct{ Key secret.Value }
	if err := json.Unmarshal([]byte(`{"key":"`+plain+`"}`), &in); err != nil || in.Key.Reveal() != plain {
		t.Fatalf("read %q, %v", in.Key.Reveal(), err)
	}
	if !in.Key.Equal(secret.New(plain)) || in.Key.Equal(secret.New("other")) || in.Key.Empty() {
		t.Error("Equal or Empty is wrong")
	}
	if err := json.Unmarshal([]byte(`{"key":null}`), &in); err != nil || !in.Key.Empty() {
		t.Errorf("null left %v, %v", in.Key.Empty(), err)
	}
	err := json.Unmarshal([]byte(`{"key":{"inner":"`+plain+`"}}`), &in)
	if err == nil || strings.Contains(err.Error(), plain) {
		t.Errorf("an object as a secret: %v", err)
	}
	var zero secret.Value
	if !zero.Empty() || zero.Reveal() != "" || !zero.Equal(secret.New("")) {
		t.Error("the zero value is not an empty secret")
	}
}

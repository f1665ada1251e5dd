package static

import (
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func get(t *testing.T, path string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w.Result()
}

func TestFilesAreServedUnderTheirHashAndKeptForAYear(t *testing.T) {
	t.Parallel()
	for name := range hashed {
		answer := get(t, Path(name))
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d", name, answer.StatusCode)
		}
		if got := answer.Header.Get("Cache-Control"); got != "public, max-age=31536000, immutable" {
			t.Errorf("%s: Cache-Control %q", name, got)
		}
		if answer.Header.Get("Content-Type") == "" || answer.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", name, answer.Header)
		}
		body, _ := io.ReadAll(answer.Body)
		if len(body) == 0 || strconv.Itoa(len(body)) != answer.Header.Get("Content-Length") {
			t.Errorf("%s: %d bytes, Content-Length %s", name, len(body), answer.Header.Get("Content-Length"))
		}
	}
}

func TestAFileIsCompressedOnlyForWhoAccepts(t *testing.T) {
	t.Parallel()
	plain, err := io.ReadAll(get(t, Path("app.css")).Body)
	if err != nil {
		t.Fatal(err)
	}
	for accept, compressed := range map[string]bool{"gzip, br": true, "br, GZIP;q=0.5": true, "gzip;q=0": false, "br": false, "": false} {
		answer := get(t, Path("app.css"), "Accept-Encoding", accept)
		if got := answer.Header.Get("Content-Encoding") == "gzip"; got != compressed {
			t.Errorf("Accept-Encoding %q: compressed %v", accept, got)
			continue
		}
		if !compressed {
			continue
		}
		r, err := gzip.NewReader(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(r); err != nil || string(body) != string(plain) {
			t.Errorf("Accept-Encoding %q: another body (%v)", accept, err)
		}
	}
}

func TestAnUnknownOrUnhashedNameIsNotFoundAndNotKept(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/static/app.css", "/static/app.000000000000.css", "/static/", "/static/../static.go"} {
		answer := get(t, path)
		if answer.StatusCode != http.StatusNotFound || answer.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: status %d, Cache-Control %q", path, answer.StatusCode, answer.Header.Get("Cache-Control"))
		}
	}
}

func TestAKnownFileIsNotSentAgain(t *testing.T) {
	t.Parallel()
	etag := get(t, Path("app.js")).Header.Get("ETag")
	if answer := get(t, Path("app.js"), "If-None-Match", etag); answer.StatusCode != http.StatusNotModified {
		t.Fatalf("status %d", answer.StatusCode)
	}
}

// Every text colour must be readable on every ground it is used on, in both themes: 4.5 to 1 (WCAG 2.2 AA);
// 3 to 1 for the edges of controls.
func TestColoursContrastInBothThemes(t *testing.T) {
	t.Parallel()
	css, err := embedded.ReadFile("files/app.css")
	if err != nil {
		t.Fatal(err)
	}
	themes := [2]map[string]string{{}, {}}
	for _, m := range regexp.MustCompile(`--([a-z-]+):\s*light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)`).FindAllStringSubmatch(string(css), -1) {
		themes[0][m[1]], themes[1][m[1]] = m[2], m[3]
	}
	if len(themes[0]) < 25 {
		t.Fatalf("found %d colours in the table", len(themes[0]))
	}
	type pair struct {
		text, ground string
		ratio        float64
	}
	var pairs []pair
	for _, ground := range []string{"bg", "surface", "raised"} {
		for _, text := range []string{"text", "muted", "accent", "ok", "run", "wait", "warn", "fail", "off", "ansi-red", "ansi-green", "ansi-yellow", "ansi-blue", "ansi-magenta", "ansi-cyan"} {
			pairs = append(pairs, pair{text, ground, 4.5})
		}
		pairs = append(pairs, pair{"line-strong", ground, 3})
	}
	for _, state := range []string{"ok", "run", "wait", "warn", "fail", "off"} {
		for _, text := range []string{state, "text", "muted"} {
			pairs = append(pairs, pair{text, state + "-bg", 4.5})
		}
	}
	pairs = append(pairs, pair{"accent-text", "accent", 4.5})
	for i, theme := range []string{"light", "dark"} {
		for _, p := range pairs {
			text, ground := themes[i][p.text], themes[i][p.ground]
			if text == "" || ground == "" {
				t.Fatalf("%s: no colour %s or %s", theme, p.text, p.ground)
			}
			if got := contrast(t, text, ground); got < p.ratio {
				t.Errorf("%s: %s %s on %s %s is %.2f, want %.1f", theme, p.text, text, p.ground, ground, got, p.ratio)
			}
		}
	}
}

func contrast(t *testing.T, a, b string) float64 {
	la, lb := luminance(t, a), luminance(t, b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	var rgb [3]uint8
	if _, err := fmt.Sscanf(colour, "#%02x%02x%02x", &rgb[0], &rgb[1], &rgb[2]); err != nil {
		t.Fatal(err)
	}
	var linear [3]float64
	for i, c := range rgb {
		v := float64(c) / 255
		if v <= 0.04045 {
			linear[i] = v / 12.92
		} else {
			linear[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return 0.2126*linear[0] + 0.7152*linear[1] + 0.0722*linear[2]
}

// No colour outside the table, so that both themes stay complete.
func TestColoursStandOnlyInTheTable(t *testing.T) {
	t.Parallel()
	css, err := embedded.ReadFile("files/app.css")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(css), "\n") {
		if regexp.MustCompile(`#[0-9a-f]{3,8}\b`).MatchString(line) && !strings.Contains(line, "light-dark(") {
			t.Errorf("line %d: %s", i+1, line)
		}
	}
}

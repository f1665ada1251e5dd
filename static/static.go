// Package static holds the files a browser loads beside the pages: htmx and its SSE extension, one
// stylesheet, a small script, the icon. They are embedded, served under names that carry a hash of their
// content, and may therefore be kept for ever: a new version has a new name.
package static

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

// Prefix is the URL path under which Handler is to be mounted.
const Prefix = "/static/"

// hashLength is how many hex digits of the SHA-256 a name carries: 48 bits, plenty for a dozen files.
const hashLength = 12

//go:embed files
var embedded embed.FS

// asset is one file, ready to be sent.
type asset struct {
	contentType string
	etag        string
	plain       []byte
	gzipped     []byte // nil when compressing gains nothing
}

var (
	assets = map[string]asset{}  // by hashed name: app.0123456789ab.css
	hashed = map[string]string{} // app.css → app.0123456789ab.css
)

func init() {
	err := fs.WalkDir(embedded, "files", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		hash := hex.EncodeToString(sum[:])[:hashLength]
		base := strings.TrimPrefix(name, "files/")
		ext := path.Ext(base)
		served := strings.TrimSuffix(base, ext) + "." + hash + ext
		hashed[base] = served
		assets[served] = asset{
			contentType: contentType(ext),
			etag:        `"` + hash + `"`,
			plain:       content,
			gzipped:     compress(content),
		}
		return nil
	})
	if err != nil {
		panic(fmt.Sprintf("static: reading embedded files: %v", err))
	}
}

// contentType does not ask the host's MIME table for what we ship, so that every host answers the same.
func contentType(ext string) string {
	switch ext {
	case ".css":
		return "text/css; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.TypeByExtension(ext)
}

func compress(content []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is valid
	if _, err := w.Write(content); err != nil {
		panic(err) // a bytes.Buffer does not fail
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	if out.Len() >= len(content) {
		return nil
	}
	return out.Bytes()
}

// Path is the URL path of a file, with its hash: Path("app.css") is "/static/app.0123456789ab.css".
// An unknown name is a mistake in the program and panics.
func Path(name string) string {
	served, ok := hashed[name]
	if !ok {
		panic("static: no file named " + name)
	}
	return Prefix + served
}

// Handler serves the files under Prefix. A hashed name may be kept for a year without asking again;
// anything else is not found, so that an old page never gets a new file under an old name.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		file, ok := assets[strings.TrimPrefix(r.URL.Path, Prefix)]
		if !ok {
			w.Header().Set("Cache-Control", "no-store")
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", file.contentType)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
		h.Set("Vary", "Accept-Encoding")
		h.Set("ETag", file.etag)
		if r.Header.Get("If-None-Match") == file.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		body := file.plain
		if file.gzipped != nil && acceptsGzip(r.Header.Get("Accept-Encoding")) {
			h.Set("Content-Encoding", "gzip")
			body = file.gzipped
		}
		h.Set("Content-Length", fmt.Sprint(len(body)))
		if r.Method == http.MethodHead {
			return
		}
		_, _ = w.Write(body) // the client went away: nobody to tell
	})
}

// acceptsGzip reads an Accept-Encoding header; "gzip;q=0" refuses.
func acceptsGzip(header string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(name, "gzip") {
			q := strings.TrimSpace(strings.ToLower(params))
			return q != "q=0" && q != "q=0.0" && q != "q=0.00" && q != "q=0.000"
		}
	}
	return false
}

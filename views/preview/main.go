// Command preview serves every page of the console with made-up content, to look at: usual, empty, failing
// and very long states. Nothing behind it is real; "/" lists nothing, "/index" lists all.
//
//	go run ./views/preview -listen 127.0.0.1:8081
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"html"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/a-h/templ"

	"managoat/static"
)

// policy is the console's content security policy, so that the preview breaks where the product would.
const policy = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s/index\n", listener.Addr())
	server := &http.Server{Handler: handler(time.Now()), ReadHeaderTimeout: 10 * time.Second}
	go func() { // ends with the process
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

func handler(now time.Time) http.Handler {
	list := examples(now)
	mux := http.NewServeMux()
	mux.Handle(static.Prefix, static.Handler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if r.URL.Path == "/index" {
			for _, e := range list {
				fmt.Fprintf(w, "<p><a href=\"%[1]s\">%[1]s</a></p>", html.EscapeString(e.path))
			}
			return
		}
		for _, e := range list {
			if e.path == r.URL.Path {
				render(w, r, e.page)
				return
			}
		}
		http.NotFound(w, r)
	})
	return mux
}

func render(w http.ResponseWriter, r *http.Request, page templ.Component) {
	if err := page.Render(r.Context(), w); err != nil {
		log.Printf("rendering %s: %v", r.URL.Path, err)
	}
}

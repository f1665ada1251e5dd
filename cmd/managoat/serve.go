package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"managoat/internal/broker"
	"managoat/internal/certificate"
	"managoat/internal/config"
	"managoat/internal/datadir"
	"managoat/internal/identity"
	"managoat/internal/netguard"
	"managoat/internal/refusal"
	"managoat/internal/secret"
)

// serverVerbs are the verbs that run a server or act on its data directory.
func serverVerbs() []*cobra.Command {
	return []*cobra.Command{
		configured("serve", "Run the server", serve),
		configured("down", "Park every machine of a data directory; stop its server, egress process and PostgreSQL", down),
		onStore(configured("migrate", "Bring the database up to date and end", migrateVerb)),
		configured("health", "Say whether the server of these settings can work (exit 0: it can)", health),
		dropRootVerb(), egressVerb(), doctorVerb(), adminVerbs(), hostVerbs(), runtimesVerbs(),
		loginVerb(), workspaceVerbs(), runVerb(), meVerb(),
	}
}

// serve runs the server until it is told to stop.
func serve(ctx context.Context, cfg *config.Config) (err error) {
	runs := false
	defer func() {
		if !runs && ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil // told to stop while it started: nothing went wrong
		}
	}()
	dir, err := datadir.Open(cfg.Data)
	if err != nil {
		return err
	}
	defer dir.Close()
	certificates, err := openCertificates(cfg, dir)
	if err != nil {
		return err
	}
	listener, err := listen("listen", cfg.Listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	var plain net.Listener // beside TLS
	if cfg.HTTPListen != "" {
		if plain, err = listen("http-listen", cfg.HTTPListen); err != nil {
			return err
		}
		defer plain.Close()
	}
	url := cfg.URL
	if url == "" {
		url = "http://" + listener.Addr().String()
	}
	if err := dir.Announce(url); err != nil {
		return err
	}
	b, err := openBase(ctx, cfg, dir, func(s string) { fmt.Fprintln(os.Stderr, s) })
	if err != nil {
		return err
	}
	defer func() {
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceful)
		defer cancel()
		b.close(rest)
	}()
	s, err := assemble(ctx, b, url)
	if err != nil {
		return err
	}
	if err := s.restore(ctx); err != nil {
		return err
	}

	// Work goes on for a short while after the server was told to stop, so that what is under way can be handed over.
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	worked, tended := make(chan error, 1), make(chan error, 1)
	go func() { worked <- s.run(work) }()
	tending, endTending := context.WithCancel(context.WithoutCancel(ctx))
	defer func() { endTending(); <-tended }() // before the base closes, which stops PostgreSQL
	go func() { tended <- b.tend(tending) }()

	proxies, err := cfg.Proxies()
	if err != nil {
		return err
	}
	handler := edge(b, s, proxies)
	web := server(handler)
	web.BaseContext = func(net.Listener) context.Context { return work }
	inside, err := net.Listen("unix", socketPath(b))
	if err != nil {
		return fmt.Errorf("listen for machines: %w", err)
	}
	served := make(chan error, 3)
	if certificates == nil {
		go func() { served <- web.Serve(listener) }()
	} else {
		web.TLSConfig = certificates.TLS()
		go func() { served <- web.ServeTLS(listener, "", "") }()
		go certificates.Obtain(work)
	}
	go func() { served <- web.Serve(inside) }()
	if plain != nil {
		sender := server(certificates.Plain(url))
		defer sender.Close()
		go func() { served <- sender.Serve(plain) }()
	}
	if err := greet(work, s.identity, url); err != nil {
		return err
	}

	runs = true
	select {
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr, "\nStopping. Machines keep running, with the agents in them; the next start finds them again.")
		fmt.Fprintf(os.Stderr, "To park them and stop everything: managoat down --data %s\n", cfg.Data)
	case err = <-served:
		slog.Error("the server's listener failed", "err", err)
	case err = <-worked:
		worked <- err
		slog.Error("background work failed", "err", err)
	case err = <-tended:
		tended <- err
		slog.Error("PostgreSQL is gone", "err", err)
	}
	// A second signal ends at once.
	force := make(chan os.Signal, 1)
	signal.Notify(force, syscall.SIGINT, syscall.SIGTERM)
	go func() { <-force; os.Exit(exitRefused) }()

	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceful)
	defer cancel()
	endWork() // streams end, so that Shutdown does not wait for them; turns are handed over
	web.Shutdown(rest)
	select {
	case e := <-worked:
		err = errors.Join(err, e)
	case <-rest.Done():
		err = errors.Join(err, errors.New("some background work did not end in time"))
	}
	return err
}

// openCertificates is where the certificate for https comes from; nil: the server speaks plain http.
func openCertificates(cfg *config.Config, dir *datadir.Dir) (*certificate.Source, error) {
	ca, err := netguard.ReadCA(cfg.ExtraCA)
	if err != nil {
		return nil, fmt.Errorf("--extra-ca: %w", err)
	}
	return certificate.Open(certificate.Options{
		Cert: cfg.TLSCert, Key: cfg.TLSKey, Host: cfg.Host(),
		Domains: cfg.ACMEDomains, Contact: cfg.ACMEContact, Directory: cfg.ACMEDirectory, Cache: dir.Path("acme"), ExtraCA: ca, Log: slog.Default(),
	})
}

// listen opens an address that a flag named.
func listen(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("another program listens on %s: stop it, or give another --%s", address, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("--%s %s: only root may listen on ports below 1024 here (or a service with CAP_NET_BIND_SERVICE)", flag, address)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

// server is the HTTP server. Streams have no total lifetime: each frame has a deadline of its own.
func server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
}

func socketPath(b *base) string {
	path := b.dir.Path(apiSocket)
	os.Remove(path) // of a server that was killed; the directory's lock says that none runs
	return path
}

// greet prints the URL, and on the first start the link that makes the first account.
func greet(ctx context.Context, people *identity.Service, url string) error {
	fmt.Printf("Managoat runs at %s\n", url)
	has, err := people.HasAccounts(ctx)
	if err != nil || has {
		return err
	}
	token, expires, err := people.SetupLink(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("Make the first account (once, until %s):\n  %s/setup?token=%s\n", expires.Local().Format("Mon 15:04"), url, token.Reveal())
	return nil
}

func egressVerb() *cobra.Command {
	var data string
	cmd := verb("run", "egress", "Run the egress process of a data directory (started by serve)", cobra.NoArgs, func(c *cobra.Command, _ []string) error {
		slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
		at := (&config.Config{Data: data})
		dial, err := dialGuest(at.Dir("machines"))
		if err != nil {
			return err
		}
		err = broker.Serve(c.Context(), broker.Options{Dir: at.Dir("egress"), Dial: dial, Log: slog.Default(), Build: version})
		if errors.Is(err, broker.ErrServed) {
			return &codedError{exitRefused, err}
		}
		return err
	})
	cmd.Flags().StringVar(&data, "data", "", "the data directory")
	cmd.MarkFlagRequired("data")
	return cmd
}

// down parks every machine and stops everything of a data directory, with or without a server that runs.
func down(ctx context.Context, cfg *config.Config) error {
	if err := anInstance(cfg); err != nil {
		return err
	}
	dir, err := datadir.StopServer(cfg.Data, 2*graceful)
	if err != nil {
		return err
	}
	defer dir.Close()
	b, err := openBase(ctx, cfg, dir, func(s string) { fmt.Fprintln(os.Stderr, s) })
	if err != nil {
		return err
	}
	defer func() { b.close(context.WithoutCancel(ctx)) }()
	s, err := assemble(ctx, b, "")
	if err != nil {
		return err
	}
	parked, err := s.machines.Down(ctx)
	if err != nil {
		return fmt.Errorf("park machines: %w", err)
	}
	s.broker.Close()
	if err := broker.Stop(ctx, dir.Path("egress")); err != nil {
		return fmt.Errorf("stop the egress process: %w", err)
	}
	fmt.Fprintf(os.Stderr, "Machines parked: %d. Server, egress process and PostgreSQL of %s are stopped.\n", parked, cfg.Data)
	return nil
}

// anInstance refuses a data directory in which there is nothing, before it is made into one.
func anInstance(cfg *config.Config) error {
	if _, err := os.Stat(cfg.Dir("master.key")); errors.Is(err, os.ErrNotExist) && cfg.MasterKey == "" {
		return &codedError{exitRefused, fmt.Errorf("there is no Managoat in %s", cfg.Data)}
	}
	return nil
}

func migrateVerb(ctx context.Context, cfg *config.Config) error {
	dir, err := datadir.Open(cfg.Data)
	if err != nil {
		return err
	}
	defer dir.Close()
	b, err := openBase(ctx, cfg, dir, func(s string) { fmt.Fprintln(os.Stderr, s) })
	if err != nil {
		return err
	}
	b.close(ctx)
	fmt.Fprintln(os.Stderr, "The database is up to date.")
	return nil
}

func adminVerbs() *cobra.Command {
	cmd := &cobra.Command{Use: "admin", Short: "Act on a data directory as its operator", GroupID: "run", RunE: needsVerb}
	var email, account string
	var fromStdin bool
	create := configured("create-owner", "Make an account with its owner and print its API key", func(ctx context.Context, cfg *config.Config) error {
		if email == "" {
			return &codedError{exitUsage, errors.New("--email is needed")}
		}
		password, err := readPassword(fromStdin)
		if err != nil {
			return err
		}
		return createOwner(ctx, cfg, identity.OwnerInput{Email: email, Password: secret.New(password), Account: account})
	})
	create.GroupID = ""
	create.Flags().StringVar(&email, "email", "", "the owner's e-mail address")
	create.Flags().StringVar(&account, "account", "", "the account's name (default: the e-mail address)")
	create.Flags().BoolVar(&fromStdin, "password-stdin", false, "read the password from standard input")
	cmd.AddCommand(onStore(create))
	return cmd
}

// commandLine is who acts by the verbs of an operator.
const commandLine = "command line"

// operate does what an operator asks for on the database, beside a running server, which owns the directory and its
// PostgreSQL, and without one. What is refused is said as the API's client says it.
func operate(ctx context.Context, cfg *config.Config, do func(*base) error) error {
	dir, err := datadir.Open(cfg.Data)
	var inUse *datadir.InUse
	if errors.As(err, &inUse) {
		dir = datadir.Beside(cfg.Data)
	} else if err != nil {
		return err
	}
	defer dir.Close()
	b, err := openBase(ctx, cfg, dir, func(s string) { fmt.Fprintln(os.Stderr, s) })
	if err != nil {
		return err
	}
	defer func() { b.close(context.WithoutCancel(ctx)) }()
	if err := identity.NewService(b.db, b.keys, slog.Default()).CheckMasterKey(ctx); err != nil {
		return err
	}
	err = do(b)
	if r, ok := refusal.As(err); ok {
		err = &codedError{exitRefused, fmt.Errorf("%s (%s)", r.Message, r.Code)}
	}
	return err
}

func createOwner(ctx context.Context, cfg *config.Config, in identity.OwnerInput) error {
	return operate(ctx, cfg, func(b *base) error {
		owner, key, err := identity.NewService(b.db, b.keys, slog.Default()).CreateOwner(ctx, commandLine, in)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "Made the account %q with its owner %s. Its API key, shown this once:\n", owner.Account, owner.Email)
		fmt.Println(key.Plain.Reveal())
		return nil
	})
}

package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/account"
	"managoat/internal/agent"
	"managoat/internal/audit"
	"managoat/internal/broker"
	"managoat/internal/config"
	"managoat/internal/conversation"
	"managoat/internal/datadir"
	"managoat/internal/environment"
	"managoat/internal/files"
	"managoat/internal/identity"
	"managoat/internal/inference"
	"managoat/internal/ledger"
	"managoat/internal/machine"
	"managoat/internal/machine/operation"
	"managoat/internal/netguard"
	"managoat/internal/peer"
	"managoat/internal/quota"
	"managoat/internal/runtime"
	"managoat/internal/secret"
	"managoat/internal/stream"
	"managoat/internal/transcript"
	"managoat/internal/vault"
	"managoat/internal/workspace"
	"managoat/sandbox"
)

// databaseName is the embedded PostgreSQL's database.
const databaseName = "managoat"

// base is what every verb that works on a data directory stands on: the directory, its keys, its database.
type base struct {
	cfg      *config.Config
	dir      *datadir.Dir
	master   []byte
	keys     *secret.Keyring
	embedded *db.Embedded // nil with --database-url
	start    func(context.Context) (*db.Embedded, error)
	db       *db.DB
	undo     []func(context.Context)
}

// cleanup adds what close undoes, last first.
func (b *base) cleanup(fn func(context.Context)) { b.undo = append(b.undo, fn) }

func (b *base) close(ctx context.Context) {
	for i := len(b.undo) - 1; i >= 0; i-- {
		b.undo[i](ctx)
	}
	b.undo = nil
}

// openBase takes the directory, starts the database and migrates it. say tells a person what takes time.
func openBase(ctx context.Context, cfg *config.Config, dir *datadir.Dir, say func(string)) (_ *base, err error) {
	b := &base{cfg: cfg, dir: dir}
	defer func() {
		if err != nil {
			b.close(context.WithoutCancel(ctx))
		}
	}()
	if b.master, err = masterKey(cfg, dir); err != nil {
		return nil, err
	}
	if b.keys, err = secret.Open(b.master); err != nil {
		return nil, err
	}
	owner := cfg.DatabaseURL
	if owner == "" {
		pg := dir.Path("pg")
		bin, err := binaries(ctx, cfg, pg, say)
		if err != nil {
			return nil, err
		}
		b.start = func(ctx context.Context) (*db.Embedded, error) { return db.StartEmbedded(ctx, pg, bin) }
		if b.embedded, err = b.start(ctx); err != nil {
			return nil, err
		}
		if !dir.Held() {
			b.embedded.Leave() // it belongs to the server that holds the directory
		}
		b.cleanup(func(ctx context.Context) {
			if err := b.embedded.Stop(ctx); err != nil {
				slog.Error("PostgreSQL did not stop", "err", err)
			}
		})
		if owner, err = b.embedded.OwnerURL(ctx, databaseName); err != nil {
			return nil, err
		}
	}
	urls, err := db.Migrate(ctx, owner, db.URLs{App: cfg.AppDatabaseURL, Platform: cfg.PlatformDatabaseURL}, b.master)
	if err != nil {
		return nil, err
	}
	if b.db, err = db.Open(ctx, urls, db.Options{MaxConns: int32(cfg.DatabaseConnections), Pooler: cfg.DatabasePooler}); err != nil {
		return nil, err
	}
	b.cleanup(func(context.Context) { b.db.Close() })
	return b, nil
}

// Starts of a PostgreSQL that ended by itself.
const (
	startPause = 500 * time.Millisecond // between tries: what the one before left must end
	startTries = 20                     // in a row, after which it is given up
	startLasts = time.Minute            // a start that lasted so long was one
)

// tend starts our PostgreSQL again when it ends, as when the kernel needed memory, until ctx ends. What the server does
// meanwhile waits for it. One that does not last is an error.
func (b *base) tend(ctx context.Context) error {
	if b.embedded == nil {
		<-ctx.Done()
		return nil
	}
	for tries := 0; ; tries++ {
		since := time.Now()
		if b.embedded.Ended(ctx) != nil {
			return nil
		}
		if time.Since(since) > startLasts {
			tries = 0
		}
		slog.Error("PostgreSQL ended by itself and is started again; its log is in the data directory (pg/postgres.log)")
		for ; ; tries++ {
			again, err := b.start(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err == nil {
				b.embedded = again
				break
			}
			if tries >= startTries {
				return fmt.Errorf("PostgreSQL ends again and again: %w", err)
			}
			select {
			case <-time.After(startPause):
			case <-ctx.Done():
				return nil
			}
		}
		slog.Info("PostgreSQL runs again")
	}
}

// binaries finds PostgreSQL's, and fetches pinned ones with npm when none are installed.
func binaries(ctx context.Context, cfg *config.Config, pg string, say func(string)) (string, error) {
	bundles := filepath.Join(cfg.RuntimesDir, "postgresql")
	bin, err := db.FindBinaries(pg, cfg.PGBin, bundles)
	if err == nil || cfg.PGBin != "" {
		return bin, err
	}
	if _, statErr := os.Stat(filepath.Join(pg, "data")); statErr == nil {
		return "", err // a cluster that is there needs its own version
	}
	say("PostgreSQL is not installed; fetching it with npm")
	if e := os.MkdirAll(bundles, 0o755); e != nil {
		return "", errors.Join(err, e)
	}
	bin, fetchErr := db.FetchBinaries(ctx, bundles)
	if fetchErr != nil {
		return "", fmt.Errorf("%w (%v)", err, fetchErr)
	}
	return bin, nil
}

// masterKey is the setting's, else the key file's, which the first start makes.
func masterKey(cfg *config.Config, dir *datadir.Dir) ([]byte, error) {
	if cfg.MasterKey != "" {
		return secret.ParseMasterKey(cfg.MasterKey)
	}
	return secret.MasterKeyFile(dir.Path("master.key"))
}

// instance names the instance: every server of one shares the master key.
func instance(master []byte) string {
	mac := hmac.New(sha256.New, master)
	mac.Write([]byte("instance"))
	return hex.EncodeToString(mac.Sum(nil)[:6])
}

// hostID is this data directory's, made once.
func hostID(dir *datadir.Dir) (uuid.UUID, error) {
	path := dir.Path("host-id")
	if b, err := os.ReadFile(path); err == nil {
		id, err := uuid.Parse(strings.TrimSpace(string(b)))
		if err != nil {
			return uuid.Nil, fmt.Errorf("%s does not hold an id", path)
		}
		return id, nil
	}
	id := uuid.Must(uuid.NewV7())
	return id, os.WriteFile(path, []byte(id.String()+"\n"), 0o600)
}

// services are the domain, wired.
type services struct {
	db            *db.DB
	identity      *identity.Service
	audit         *audit.Service
	quotas        *quota.Service
	environments  *environment.Service
	vaults        *vault.Service
	agents        *agent.Service
	inference     *inference.Service
	machines      *machine.Service
	workspaces    *workspace.Service
	conversations *conversation.Service
	files         *files.Service
	accounts      *account.Service
	ledger        *ledger.Service
	reader        *stream.Reader
	hub           *stream.Hub
	writer        *transcript.Writer
	operations    *operation.Runner
	broker        *broker.Client
	host          uuid.UUID
}

// apiSocket is where the egress process reaches the server's API for the machines.
const apiSocket = "api.sock"

// assemble wires the domain on a base. Nothing runs yet but the egress process and the writers.
func assemble(ctx context.Context, b *base, url string) (*services, error) {
	cfg, log := b.cfg, slog.Default()
	s := &services{db: b.db}
	var err error
	if s.host, err = hostID(b.dir); err != nil {
		return nil, err
	}
	allow, err := netguard.ParseAllowances(strings.Join(cfg.AllowPrivate, ","))
	if err != nil {
		return nil, fmt.Errorf("--allow-private: %w", err)
	}
	resolve, err := netguard.ParseResolve(strings.Join(cfg.Resolve, ","))
	if err != nil {
		return nil, fmt.Errorf("--resolve: %w", err)
	}
	ca, err := netguard.ReadCA(cfg.ExtraCA)
	if err != nil {
		return nil, fmt.Errorf("--extra-ca: %w", err)
	}
	ports, err := cfg.Ports()
	if err != nil {
		return nil, err
	}
	sources, err := cfg.AptSources()
	if err != nil {
		return nil, fmt.Errorf("--apt-sources: %w", err)
	}
	runtimes, err := filepath.Abs(cfg.RuntimesDir)
	if err != nil {
		return nil, err
	}
	if err := runtime.Prepare(runtimes); err != nil {
		return nil, fmt.Errorf("--runtimes-dir: %w", err)
	}

	guest, err := guestBinary()
	if err != nil {
		return nil, err
	}
	limits := sandbox.Limits{MemoryBytes: int64(cfg.MachineMemoryMB) << 20, CPUs: cfg.MachineCPUs, Pids: int64(cfg.MachinePids), DiskBytes: int64(cfg.MachineDiskMB) << 20}
	providers, closeProviders, err := openProviders(cfg, providerOptions{dir: b.dir.Path("machines"), guest: guest, mountRoots: []string{runtimes},
		aptSources: []byte(sources), extraCA: ca, limits: limits, log: log})
	if err != nil {
		return nil, err
	}
	b.cleanup(func(context.Context) { closeProviders() })

	s.hub = stream.NewHub(b.db, log)
	s.reader = stream.NewReader(b.db, s.hub)
	events := stream.NewAccount(s.hub)
	s.writer = transcript.NewWriter(b.db, s.hub)
	s.ledger = ledger.New(b.db, log)
	s.identity = identity.NewService(b.db, b.keys, log)
	if err := s.identity.CheckMasterKey(ctx); err != nil {
		return nil, err
	}

	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.broker, err = broker.Connect(ctx, b.dir.Path("egress"), broker.ClientOptions{
		Spawn: broker.Command([]string{self, "egress", "--data", b.dir.Path()}, egressEnviron()), Sink: s.ledger, Log: log, Build: version,
		Settings: broker.Settings{Resolve: resolve, AllowPrivate: allow, ExtraCA: ca, Ports: ports, API: b.dir.Path(apiSocket), DockerHost: cfg.DockerHost},
	})
	if err != nil {
		return nil, fmt.Errorf("start the egress process: %w", err)
	}
	b.cleanup(func(context.Context) { s.broker.Close() })

	defaults := quota.Defaults{RunningMachines: cfg.RunningMachines, PromptsPerMinute: cfg.PromptsPerMinute}
	s.audit, s.quotas = audit.New(b.db), quota.New(b.db, defaults)
	s.vaults = vault.NewService(b.db, b.keys)
	s.agents = agent.NewService(b.db, cfg.SandboxProviders)
	s.inference = inference.NewService(b.db, b.keys, allow)
	// An environment's change concerns the workspaces, which are made from environments: the hook is filled below.
	s.environments = environment.NewService(b.db, b.keys, func(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID, changed []string) error {
		return s.workspaces.EnvironmentChanged(ctx, tx, tenantID, id, changed)
	})
	s.operations = operation.NewRunner(b.db, s.host, log)
	peers := peer.NewClient(peer.NewKey(b.master), s.host, netguard.Options{Resolve: resolve, ExtraCA: ca})
	b.cleanup(func(context.Context) { peers.Close() })
	s.machines = machine.New(b.db, machine.Options{
		Host: s.host, URL: cmp.Or(cfg.HostURL, url), Peers: peers, Instance: instance(b.master), Providers: providers, Default: cfg.SandboxProvider,
		Egress: s.broker, Limits: limits, Quotas: defaults, Fleet: cfg.FleetMachines, Most: cfg.HostMachines, Version: version, Log: log,
		Mounts: func(context.Context) ([]sandbox.Mount, error) { return runtime.Mounts(runtimes), nil },
	}, func(ctx context.Context, tx db.Tx, tenantID, workspaceID uuid.UUID) error {
		return s.workspaces.MachineChanged(ctx, tx, tenantID, workspaceID)
	})
	b.cleanup(func(context.Context) { s.machines.Close() })
	s.operations.Tell(s.machines.Tell)
	occupants := &occupants{}
	s.workspaces = workspace.New(b.db, workspace.Options{
		Machines: s.machines, Operations: s.operations, Environments: s.environments, Vaults: s.vaults, Stream: events, Occupants: occupants,
		// Disposable stays off: what an agent remembers is on its conversation's machine alone.
		Lifetimes: workspace.Lifetimes{Idle: cfg.IdleTimeout(), Ceiling: cfg.MaxLifetime(), Retention: cfg.TaskRetention()},
		ExtraCA:   ca, AptSources: sources, NPMRegistry: cfg.NPMRegistry, PIPIndex: cfg.PIPIndex, Version: version, Log: log,
	})
	s.conversations = conversation.New(b.db, conversation.Options{
		Owner: s.host, RuntimesDir: runtimes, Agents: s.agents, Workspaces: s.workspaces, Inference: s.inference, Keys: b.keys, Broker: s.broker,
		Ledger: s.ledger, Writer: s.writer, Account: events, Quotas: defaults, Tell: s.machines.Tell, Log: log,
	})
	occupants.Service = s.conversations
	s.files = files.New(s.workspaces, s.conversations)
	s.accounts = account.New(b.db, s.identity, s.workspaces, log)
	return s, nil
}

// egressEnviron is what the egress process gets of the server's environment: nothing of its settings, which hold keys
// and passwords. What it needs of them comes over the control socket.
func egressEnviron() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "LANG", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_API_VERSION"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// occupants breaks the circle: conversations are made on workspaces, which ask about their conversations.
type occupants struct{ *conversation.Service }

var _ workspace.Occupants = occupants{}

// restore finds again what an earlier server of this directory left: machines, and what the egress process knows.
func (s *services) restore(ctx context.Context) error {
	if err := s.machines.Register(ctx); err != nil {
		return err
	}
	if err := s.machines.Restore(ctx); err != nil {
		return err
	}
	refs, err := s.db.Due(ctx, db.DueMachines, s.host)
	if err != nil {
		return err
	}
	accounts := map[uuid.UUID]bool{}
	for _, r := range refs {
		if !accounts[r.TenantID] {
			accounts[r.TenantID] = true
			if err := s.conversations.Restore(ctx, r.TenantID); err != nil {
				return err
			}
		}
	}
	return s.broker.Prune(ctx)
}

// run does the background work until ctx ends, and returns when all of it has ended. One that fails ends the others.
func (s *services) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := map[string]func(context.Context) error{
		"streams": s.hub.Run, "identity": s.identity.Run, "machines": s.machines.Run, "workspaces": s.workspaces.Run, "conversations": s.conversations.Run,
		"accounts": s.accounts.Run,
	}
	ended := make(chan error, len(jobs))
	for name, job := range jobs {
		go func() {
			err := job(ctx)
			if err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
			ended <- err
		}()
	}
	for range jobs {
		<-ended
	}
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// graceful is how long a stopping server waits for what is under way.
const graceful = 20 * time.Second

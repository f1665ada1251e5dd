// Package docker runs machines as containers of a Docker Engine, reached through its API alone: no path of the host is
// mounted, so that an engine in a virtual machine, one of another host and one that a server in a container is given the
// socket of are all the same.
//
// A machine is a container without a network, with few capabilities and Docker's own system call filter; its disk is the
// container's writable layer. The guest is its first process and takes everything from what it starts. Its first connection
// is its standard input and output; further ones come in through processes that the engine starts beside it (package bridge).
package docker

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"managoat/sandbox"
	"managoat/sandbox/diskwatch"
	"managoat/sandbox/guest"
	"managoat/sandbox/guest/bridge"
)

// DefaultImage is what `make image` builds.
const DefaultImage = "managoat-machine:latest"

// Defaults and periods of the provider.
const (
	startTimeout = time.Minute       // from a container that exists to a guest that answers, on a host that is short of CPU
	stopTimeout  = 30 * time.Second  // for the kernel to end what was killed
	askTimeout   = 5 * time.Second   // to learn why a start failed
	maxWords     = 1024              // bytes of a guest's last words
	maxLog       = 4 * bridge.MaxLog // more than the guest's log holds, which is begun anew at a start only
	spareLife    = 5 * time.Second   // of a connection that a start leaves for who starts a machine
)

// Labels of ours besides a machine's own.
const (
	labelPrefix = "managoat.docker."
	labelKind   = labelPrefix + "kind" // kindMachine or kindShare
	labelBase   = labelPrefix + "base"
	labelPrint  = labelPrefix + "fingerprint"
	labelDisk   = labelPrefix + "disk" // the limit, in bytes

	kindMachine = "machine"
	kindShare   = "share"
)

// Options of a provider.
type Options struct {
	// Host is the engine's address ("unix:///var/run/docker.sock", "tcp://…"); "" takes it, with TLS, from DOCKER_HOST and its
	// like, or else the usual socket.
	Host string
	// Image that machines are made from; "" is DefaultImage. It needs a shell, coreutils and what agents use.
	Image string
	// Runtime is the engine's OCI runtime ("runsc"); "" is its own default.
	Runtime string
	// GuestBinary is cmd/managoat-guest for the engine's architecture.
	GuestBinary []byte
	// MountRoots are the directories of this host below which Spec.Mounts may lie. Their files are copied to the engine.
	MountRoots []string
	// AptSources replaces the image's package sources (deb822 or one-line, by its content).
	AptSources []byte
	// Defaults replace zero limits of a Spec. What is zero here too is sandbox.DefaultLimits.
	Defaults sandbox.Limits
	// Log gets what nobody waits for; nil discards.
	Log *slog.Logger
}

// Provider is the docker provider. Close it when the server ends; machines go on.
type Provider struct {
	opts   Options
	log    *slog.Logger
	engine *client.Client
	guest  string    // digest of the guest's binary
	stamp  time.Time // of its last change, wherever we copied it: by which it is known
	images images
	disks  diskwatch.Disks
	mu     sync.Mutex
	locks  map[string]*sync.Mutex
	spares map[string]*spare
	shares map[string]*share // by source
	probed *sandbox.Capabilities
	stop   context.CancelFunc
	work   sync.WaitGroup
}

var _ sandbox.Provider = (*Provider)(nil)

// New prepares the provider. It does not need the engine to be there.
func New(opts Options) (*Provider, error) {
	if len(opts.GuestBinary) == 0 {
		return nil, errors.New("docker provider: no guest binary: build the server with `make build`")
	}
	if opts.Image == "" {
		opts.Image = DefaultImage
	}
	engine, err := dialEngine(opts.Host)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(opts.GuestBinary)
	p := &Provider{
		opts: opts, log: opts.Log, engine: engine,
		guest: hex.EncodeToString(sum[:8]), stamp: time.Unix(int64(binary.BigEndian.Uint32(sum[:]))>>1, 0),
		locks: map[string]*sync.Mutex{}, spares: map[string]*spare{}, shares: map[string]*share{},
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.work.Go(func() { p.watchDisks(ctx) })
	return p, nil
}

// dialEngine prepares a client, which connects when it is used.
func dialEngine(host string) (*client.Client, error) {
	from := []client.Opt{client.FromEnv}
	if host != "" {
		from = []client.Opt{client.WithHost(host)}
	}
	engine, err := client.New(append(from, client.WithUserAgent("managoat"), client.WithHTTPResponseHook(noteStatus))...)
	if err != nil {
		return nil, fmt.Errorf("docker provider: %w", err)
	}
	return engine, nil
}

// Close ends the provider's own work and waits for it. Machines go on.
func (p *Provider) Close() error {
	p.stop()
	p.work.Wait()
	p.mu.Lock()
	for _, s := range p.spares {
		s.conn.Close()
	}
	p.spares = map[string]*spare{}
	p.mu.Unlock()
	return p.engine.Close()
}

// Name is "docker".
func (p *Provider) Name() string { return "docker" }

// Capabilities asks the engine once.
func (p *Provider) Capabilities(ctx context.Context) (sandbox.Capabilities, error) {
	p.mu.Lock()
	known := p.probed
	p.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	info, err := p.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return sandbox.Capabilities{}, failed("capabilities", "the Docker Engine does not answer", err)
	}
	caps := sandbox.Capabilities{Root: true, DiskLimit: true, MemoryLimit: info.Info.MemoryLimit, CPULimit: info.Info.CPUCfsQuota, PidsLimit: info.Info.PidsLimit, Notes: []string{}}
	for _, c := range []struct {
		ok   bool
		note string
	}{
		{caps.MemoryLimit, "The Docker Engine cannot limit memory: enable the memory cgroup on its host."},
		{caps.CPULimit, "The Docker Engine cannot limit CPU time: enable the cpu cgroup on its host."},
		{caps.PidsLimit, "The Docker Engine cannot limit processes: enable the pids cgroup on its host."},
		{false, "Machines have no range of user ids of their own: machine root has the number of the engine's root, with few capabilities. The engine's own setting userns-remap changes that."},
		{false, "Commands of a machine can read each other's environment, another conversation's tokens too."},
		{false, "What one machine's packages step installed is not kept for others."},
	} {
		if !c.ok {
			caps.Notes = append(caps.Notes, c.note)
		}
	}
	p.mu.Lock()
	p.probed = &caps
	p.mu.Unlock()
	return caps, nil
}

var validName = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

func (p *Provider) limits(l sandbox.Limits) sandbox.Limits {
	return l.Or(p.opts.Defaults).Or(sandbox.DefaultLimits())
}

// kept are Docker's default capabilities less those that a machine has no use for.
var kept = []string{"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "KILL"}

// masked are Docker's own masked paths and what else tells about the host. What /sys holds besides the machine's own control
// group is nobody's business in a machine.
var masked = strings.Fields(`/proc/acpi /proc/asound /proc/cmdline /proc/config.gz /proc/interrupts /proc/kallsyms /proc/kcore /proc/keys
/proc/latency_stats /proc/sched_debug /proc/scsi /proc/sysrq-trigger /proc/timer_list /proc/timer_stats
/sys/block /sys/bus /sys/class /sys/dev /sys/devices /sys/firmware /sys/hypervisor /sys/kernel /sys/module /sys/power
/sys/fs/bpf /sys/fs/btrfs /sys/fs/erofs /sys/fs/ext4 /sys/fs/f2fs /sys/fs/fuse /sys/fs/nfs /sys/fs/pstore /sys/fs/resctrl /sys/fs/selinux
/sys/fs/smackfs /sys/fs/virtiofs /sys/fs/xfs`)

var readonly = strings.Fields(`/proc/bus /proc/fs /proc/irq /proc/sys`)

// Create makes a container, which the engine does wholly or not at all.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Created, error) {
	const op = "create"
	switch {
	case !validName.MatchString(spec.Name) || len(spec.Name) < 2: // the engine's own rule
		return sandbox.Created{}, fail(sandbox.Invalid, op, "a machine's name has 2 to 63 letters, digits and dashes", nil)
	case !validName.MatchString(spec.Hostname):
		return sandbox.Created{}, fail(sandbox.Invalid, op, "a host name has 1 to 63 letters, digits and dashes", nil)
	}
	mounts, links, err := p.mounts(ctx, spec.Mounts)
	if err != nil {
		return sandbox.Created{}, err
	}
	img, err := p.image(ctx)
	if err != nil {
		return sandbox.Created{}, err
	}
	var key [bridge.KeySize / 2]byte
	rand.Read(key[:])
	l := p.limits(spec.Limits)
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, map[string]string{
		labelKind: kindMachine, labelBase: img.base.Name, labelPrint: img.base.Fingerprint, labelDisk: fmt.Sprint(l.DiskBytes),
	})
	host := container.HostConfig{
		NetworkMode: "none", CapDrop: []string{"ALL"}, CapAdd: kept, SecurityOpt: []string{"no-new-privileges"},
		CgroupnsMode: container.CgroupnsModePrivate, IpcMode: container.IPCModePrivate, MaskedPaths: masked, ReadonlyPaths: readonly,
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled}, Runtime: p.opts.Runtime, Mounts: mounts,
		DNS: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, DNSOptions: []string{"timeout:1", "attempts:1"},
		ExtraHosts: []string{guest.ModelHost + ":" + guest.ModelAddr, guest.APIHost + ":" + guest.APIAddr},
		LogConfig:  container.LogConfig{Type: "none"}, // standard output is a connection
		Sysctls:    map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"},
	}
	host.Memory, host.MemorySwap, host.NanoCPUs, host.PidsLimit = l.MemoryBytes, l.MemoryBytes, int64(l.CPUs*1e9), &l.Pids
	created, err := p.engine.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: spec.Name,
		Config: &container.Config{
			Image: img.id, Hostname: spec.Hostname, User: "0:0", WorkingDir: "/", Labels: labels, StopSignal: "SIGKILL",
			Entrypoint: []string{bridge.Program}, Cmd: []string{}, OpenStdin: true, StdinOnce: true,
			Env: []string{bridge.KeyVariable + "=" + hex.EncodeToString(key[:]), bridge.LinksVariable + "=" + strings.Join(links, ":")},
		},
		HostConfig: &host,
	})
	if err == nil {
		p.log.Debug("docker provider: made a container", "machine", spec.Name, "container", created.ID)
		return sandbox.Created{ID: spec.Name, Base: img.base}, nil
	}
	if !errdefs.IsConflict(err) {
		return sandbox.Created{}, failed(op, "the container cannot be made", err)
	}
	c, err := p.inspect(ctx, op, spec.Name)
	switch {
	case sandbox.ClassOf(err) == sandbox.Denied:
		return sandbox.Created{}, fail(sandbox.Invalid, op, "a container of that name exists that is not ours", nil)
	case err != nil:
		return sandbox.Created{}, err
	case !maps.Equal(own(c.Config.Labels), nonNil(spec.Labels)):
		return sandbox.Created{}, fail(sandbox.Invalid, op, "a machine of that name exists with other labels", nil)
	}
	return sandbox.Created{ID: spec.Name, Adopted: true, Base: baseOf(c.Config.Labels)}, nil
}

func nonNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// own are a machine's labels without this package's.
func own(labels map[string]string) map[string]string {
	left := map[string]string{}
	for k, v := range labels {
		if !strings.HasPrefix(k, labelPrefix) {
			left[k] = v
		}
	}
	return left
}

func baseOf(labels map[string]string) sandbox.Base {
	return sandbox.Base{Name: labels[labelBase], Fingerprint: labels[labelPrint]}
}

// inspect reads a machine's container. One that is not ours is Denied.
func (p *Provider) inspect(ctx context.Context, op, id string) (container.InspectResponse, error) {
	if !validName.MatchString(id) {
		return container.InspectResponse{}, fail(sandbox.NotFound, op, "there is no machine of that name", nil)
	}
	r, err := p.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return container.InspectResponse{}, failed(op, "the container cannot be looked at", err)
	}
	c := r.Container
	if strings.TrimPrefix(c.Name, "/") != id { // the engine takes the beginning of an id for one
		return container.InspectResponse{}, fail(sandbox.NotFound, op, "there is no container of that name", nil)
	}
	if c.Config.Labels[labelKind] != kindMachine {
		return container.InspectResponse{}, fail(sandbox.Denied, op, "the container of that name is not ours", nil)
	}
	return c, nil
}

// Inspect tells the state the engine sees.
func (p *Provider) Inspect(ctx context.Context, id string) (sandbox.Info, error) {
	const op = "inspect"
	c, err := p.inspect(ctx, op, id)
	if err != nil {
		return sandbox.Info{}, err
	}
	made, _ := time.Parse(time.RFC3339Nano, c.Created)
	return p.info(ctx, op, id, c.Config.Labels, string(c.State.Status), made)
}

func (p *Provider) info(ctx context.Context, op, name string, labels map[string]string, status string, made time.Time) (sandbox.Info, error) {
	info := sandbox.Info{ID: name, Name: name, State: sandbox.Stopped, Labels: own(labels), Base: baseOf(labels), CreatedAt: made}
	switch container.ContainerState(status) {
	case container.StateRunning, container.StatePaused:
		info.State = sandbox.Running
	case container.StateDead:
		return info, fail(sandbox.Broken, op, "the engine could not remove the container wholly", nil)
	case container.StateRemoving:
		return info, fail(sandbox.Unavailable, op, "the container is being removed", nil)
	}
	if img, err := p.image(ctx); err == nil { // without its image a machine runs as well
		info.StaleBase = img.base.Fingerprint != info.Base.Fingerprint
	}
	return info, nil
}

// List shows every machine that carries all the given labels.
func (p *Provider) List(ctx context.Context, labels map[string]string) ([]sandbox.Info, error) {
	filter := client.Filters{}.Add("label", labelKind+"="+kindMachine)
	for k, v := range labels {
		filter.Add("label", k+"="+v)
	}
	all, err := p.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter})
	if err != nil {
		return nil, failed("list", "the containers cannot be listed", err)
	}
	infos := []sandbox.Info{}
	for _, c := range all.Items {
		if len(c.Names) == 0 {
			continue // it is being removed
		}
		info, err := p.info(ctx, "list", strings.TrimPrefix(c.Names[0], "/"), c.Labels, string(c.State), time.Unix(c.Created, 0))
		if sandbox.ClassOf(err) == sandbox.Broken || err == nil {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

// lock keeps two starts or stops of one machine apart.
func (p *Provider) lock(id string) func() {
	p.mu.Lock()
	l := p.locks[id]
	if l == nil {
		l = &sync.Mutex{}
		p.locks[id] = l
	}
	p.mu.Unlock()
	l.Lock()
	return l.Unlock
}

// Start starts a machine's container and waits for its guest.
func (p *Provider) Start(ctx context.Context, id string) error {
	const op = "start"
	defer p.lock(id)()
	c, err := p.inspect(ctx, op, id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var conn *stream
	switch {
	case c.State.Paused:
		if _, err := p.engine.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{}); err != nil && !errdefs.IsConflict(err) {
			return failed(op, "the container cannot go on", err)
		}
		conn, err = p.open(ctx, id)
	case c.State.Running:
		conn, err = p.open(ctx, id)
	default:
		p.disks.Forget(id)
		if err := p.mend(ctx, id); err != nil {
			return failed(op, "what the container must have cannot be copied into it", err)
		}
		conn, err = p.boot(ctx, id)
	}
	if err != nil {
		return p.unanswered(ctx, op, id, err)
	}
	p.keepSpare(id, conn)
	return nil
}

// unanswered says why a machine does not start: where its guest has ended, in its own last words.
func (p *Provider) unanswered(ctx context.Context, op, id string, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout) // the start's own time may be over
	defer cancel()
	c, err := p.inspect(ctx, op, id)
	switch {
	case err != nil && sandbox.ClassOf(err) == sandbox.Unavailable:
		return failed(op, "the Docker Engine does not answer", cause)
	case err != nil:
		return err
	case c.State.Running:
		return failed(op, "the guest does not answer", cause)
	case c.State.Status != container.StateExited || c.State.Error != "":
		return failed(op, "the container does not start", cause)
	}
	reason := fmt.Sprintf("the guest ended at once, with exit code %d", c.State.ExitCode)
	began, _ := time.Parse(time.RFC3339Nano, c.State.StartedAt)
	if words := p.lastWords(ctx, id, began); words != "" {
		reason += ": " + words
	}
	return fail(sandbox.Unavailable, op, reason, cause)
}

// lastWords is the last line of what a guest had to say about itself since it began. What machine root put in its place is
// passed over.
func (p *Provider) lastWords(ctx context.Context, id string, began time.Time) string {
	r, err := p.engine.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: bridge.Log})
	if err != nil {
		return ""
	}
	defer r.Content.Close()
	archive := tar.NewReader(r.Content)
	head, err := archive.Next()
	if err != nil || head.Typeflag != tar.TypeReg || head.Size > maxLog || head.ModTime.Before(began.Truncate(time.Second)) {
		return ""
	}
	if _, err := io.CopyN(io.Discard, archive, max(0, head.Size-maxWords)); err != nil {
		return ""
	}
	raw, _ := io.ReadAll(archive)
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(raw), "")), "\n")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, lines[len(lines)-1])
}

// Stop kills every process of a machine.
func (p *Provider) Stop(ctx context.Context, id string) error {
	const op = "stop"
	defer p.lock(id)()
	c, err := p.inspect(ctx, op, id)
	if err != nil {
		return err
	}
	p.dropSpare(id)
	if !c.State.Running && !c.State.Paused {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if c.State.Paused {
		if _, err := p.engine.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{}); err != nil && !errdefs.IsConflict(err) {
			return failed(op, "the container cannot go on", err)
		}
	}
	now := 0
	if _, err := p.engine.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &now}); err != nil {
		return failed(op, "the container does not stop", err)
	}
	return nil
}

// Destroy removes a machine's container with its disk.
func (p *Provider) Destroy(ctx context.Context, id string) error {
	const op = "destroy"
	defer p.lock(id)()
	c, err := p.inspect(ctx, op, id)
	if sandbox.ClassOf(err) == sandbox.NotFound && err != nil {
		return nil
	}
	if err != nil {
		return err
	}
	p.dropSpare(id)
	p.disks.Forget(id)
	for deadline := time.Now().Add(stopTimeout); ; {
		// By its id: a new one of the same name must not be hit.
		_, err := p.engine.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil || errdefs.IsNotFound(err):
			p.mu.Lock()
			delete(p.locks, id)
			p.mu.Unlock()
			return nil
		case !errdefs.IsConflict(err) || time.Now().After(deadline) || ctx.Err() != nil: // a conflict: it is being removed already
			return failed(op, "the container cannot be removed", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func fail(class sandbox.Class, op, reason string, err error) *sandbox.Error {
	return &sandbox.Error{Class: class, Op: op, Reason: reason, Err: err}
}

// failed sorts an error of the engine. Only that it knows no such container means that one is gone.
func failed(op, reason string, err error) error {
	var known *sandbox.Error
	if errors.As(err, &known) {
		return err
	}
	class := sandbox.Unavailable
	switch {
	case errdefs.IsNotFound(err) && strings.Contains(strings.ToLower(err.Error()), "no such container"):
		class, reason = sandbox.NotFound, "the engine knows no such container"
	case errdefs.IsPermissionDenied(err) || errdefs.IsUnauthorized(err):
		class, reason = sandbox.Denied, "the engine refuses us: may the server's user use its socket?"
	case errdefs.IsInvalidArgument(err):
		class = sandbox.Invalid
	case errdefs.IsResourceExhausted(err):
		class = sandbox.Capacity
	}
	return fail(class, op, reason, err)
}

// within tells whether a path lies in a directory.
func within(root, name string) bool {
	return name == root || strings.HasPrefix(name, strings.TrimSuffix(root, "/")+"/")
}

// mounts are a machine's read-only mounts: each host directory is a volume of the engine, and one that lies below another is a
// link into that one's ("TARGET=TO").
func (p *Provider) mounts(ctx context.Context, want []sandbox.Mount) (mounts []mount.Mount, links []string, err error) {
	const op = "create"
	for i, m := range want {
		if t := path.Clean(m.Target); t != m.Target || !strings.HasPrefix(t, "/opt/") {
			return nil, nil, fail(sandbox.Invalid, op, "a mount's target must lie below /opt", nil)
		}
		source, err := filepath.EvalSymlinks(m.Source)
		if err != nil {
			return nil, nil, fail(sandbox.Invalid, op, "a mount's source does not exist", err)
		}
		allowed := false
		for _, root := range p.opts.MountRoots {
			if root, err := filepath.EvalSymlinks(root); err == nil && within(root, source) {
				allowed = true
			}
		}
		if !allowed {
			return nil, nil, fail(sandbox.Denied, op, "a mount's source lies outside the directories that may be mounted", nil)
		}
		linked := false
		for j, other := range want {
			if rel, err := filepath.Rel(other.Source, m.Source); i != j && err == nil && rel != "." && filepath.IsLocal(rel) {
				links, linked = append(links, m.Target+"="+path.Join(other.Target, filepath.ToSlash(rel))), true
				break
			}
		}
		if linked {
			continue
		}
		volume, err := p.shared(ctx, m.Source)
		if err != nil {
			return nil, nil, err
		}
		mounts = append(mounts, mount.Mount{Type: mount.TypeVolume, Source: volume, Target: m.Target, ReadOnly: true, VolumeOptions: &mount.VolumeOptions{NoCopy: true}})
	}
	return mounts, links, nil
}

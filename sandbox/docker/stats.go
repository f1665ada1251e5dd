package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"managoat/sandbox"
	"managoat/sandbox/diskwatch"
)

const diskPeriod = 2 * time.Second // between looks at all machines' disks

// Stats reads what a machine uses now.
func (p *Provider) Stats(ctx context.Context, id string) (sandbox.Stats, error) {
	const op = "stats"
	c, err := p.inspect(ctx, op, id)
	if err != nil {
		return sandbox.Stats{}, err
	}
	d, err := p.measure(ctx, id, c.Config.Labels, diskwatch.Fresh)
	if err != nil {
		return sandbox.Stats{}, failed(op, "the container's disk cannot be measured", err)
	}
	s := sandbox.Stats{
		MemoryLimit: c.HostConfig.Memory, DiskBytes: d.Bytes, DiskLimit: diskLimit(c.Config.Labels), DiskFull: c.State.Paused && d.Full(),
		DiskMeasuredAt: d.At, MeasuredAt: time.Now(),
	}
	if !c.State.Running {
		return s, nil
	}
	r, err := p.engine.ContainerStats(ctx, id, client.ContainerStatsOptions{})
	if err != nil {
		return sandbox.Stats{}, failed(op, "the container's use cannot be read", err)
	}
	defer r.Body.Close()
	var now container.StatsResponse
	if err := json.NewDecoder(r.Body).Decode(&now); err != nil {
		return sandbox.Stats{}, failed(op, "the container's use cannot be read", err)
	}
	s.MemoryBytes = int64(now.MemoryStats.Usage)
	for _, cache := range []string{"total_inactive_file", "inactive_file"} { // of cgroup v1 and v2: what the kernel gives back by itself
		if n, ok := now.MemoryStats.Stats[cache]; ok {
			s.MemoryBytes = max(0, s.MemoryBytes-int64(n))
			break
		}
	}
	s.CPUTime, s.Pids = time.Duration(now.CPUStats.CPUUsage.TotalUsage), int64(now.PidsStats.Current)
	s.OOMKills, err = p.oomKills(ctx, c)
	if err != nil {
		return sandbox.Stats{}, failed(op, "the engine's events cannot be read", err)
	}
	return s, nil
}

// oomKills counts the times since its start that a container was out of memory, among those the engine remembers.
func (p *Provider) oomKills(ctx context.Context, c container.InspectResponse) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := p.engine.Events(ctx, client.EventsListOptions{
		Since: c.State.StartedAt, Until: strconv.FormatInt(time.Now().Unix()+1, 10),
		Filters: client.Filters{}.Add("type", "container").Add("event", "oom").Add("container", c.ID),
	})
	for n := int64(0); ; {
		select {
		case <-events.Messages:
			n++
		case err := <-events.Err:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
	}
}

func diskLimit(labels map[string]string) int64 {
	n, _ := strconv.ParseInt(labels[labelDisk], 10, 64)
	return n
}

// measure returns what a machine uses, measured now or no longer ago than fresh, but for a disk that takes long to look at.
func (p *Provider) measure(ctx context.Context, id string, labels map[string]string, fresh time.Duration) (diskwatch.Measured, error) {
	return p.disks.Measure(id, diskLimit(labels), fresh, func() (int64, error) {
		r, err := p.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{Size: true})
		if err != nil {
			return 0, err
		}
		if r.Container.SizeRw == nil {
			return 0, errors.New("the engine does not say how large the container is")
		}
		return *r.Container.SizeRw, nil
	})
}

// watchDisks pauses machines whose disk is over its limit.
func (p *Provider) watchDisks(ctx context.Context) {
	quiet := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(diskPeriod):
		}
		err := p.checkDisks(ctx)
		if err != nil && ctx.Err() == nil && !quiet {
			p.log.Error("docker provider: the machines' disks cannot be watched", "error", err)
		}
		quiet = err != nil // said once
	}
}

func (p *Provider) checkDisks(ctx context.Context) error {
	running, err := p.engine.ContainerList(ctx, client.ContainerListOptions{
		Filters: client.Filters{}.Add("label", labelKind+"="+kindMachine).Add("status", "running"),
	})
	if err != nil {
		return err
	}
	for _, c := range running.Items {
		if len(c.Names) == 0 {
			continue
		}
		id := strings.TrimPrefix(c.Names[0], "/")
		d, err := p.measure(ctx, id, c.Labels, 0)
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("measure %s: %w", id, err)
		}
		if err == nil && d.Full() {
			if err := p.pauseFull(ctx, id, c.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// pauseFull pauses a machine that was found full, unless it was started again meanwhile to make room.
func (p *Provider) pauseFull(ctx context.Context, id, containerID string) error {
	defer p.lock(id)()
	d, _ := p.disks.Last(id)
	if !d.Full() {
		return nil
	}
	p.log.Warn("docker provider: a machine's disk is full", "machine", id, "bytes", d.Bytes)
	_, err := p.engine.ContainerPause(ctx, containerID, client.ContainerPauseOptions{})
	if errdefs.IsConflict(err) || errdefs.IsNotFound(err) { // it has ended, or is paused
		return nil
	}
	return err
}

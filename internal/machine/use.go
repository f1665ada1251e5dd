package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"managoat/queries"
	"managoat/sandbox"
)

// Use is what a machine that is up uses now, with its limits (0: none). It is said by the machine's provider.
type Use struct {
	MemoryBytes    int64     `json:"memory_bytes" doc:"with what the kernel caches for it"`
	MemoryLimit    int64     `json:"memory_limit_bytes" doc:"0: none"`
	CPUs           *float64  `json:"cpus" doc:"processors in use, on the average since the last look at it, which is at most minutes ago; null where there was none"`
	CPULimit       float64   `json:"cpu_limit" doc:"processors"`
	CPUSeconds     float64   `json:"cpu_seconds" doc:"used since its start"`
	Pids           int64     `json:"pids" doc:"processes and threads"`
	PidsLimit      int64     `json:"pids_limit"`
	OOMKills       int64     `json:"oom_kills" doc:"processes that were killed because memory was full, since its start"`
	DiskBytes      int64     `json:"disk_bytes" doc:"what it wrote"`
	DiskLimit      int64     `json:"disk_limit_bytes"`
	MeasuredAt     time.Time `json:"measured_at"`
	DiskMeasuredAt time.Time `json:"disk_measured_at"`
}

// useTimeout bounds how long somebody waits for what a machine uses: it is shown beside other things.
const useTimeout = 2 * time.Second

// Times of cpuSamples: the use of processors is the difference of two.
const (
	sampleLeast = time.Second      // between two that are compared
	sampleKept  = 5 * time.Second  // before a newer one takes its place
	sampleMost  = 10 * time.Minute // one that is older says nothing of now
)

// cpuSample is how much of the processors a machine had used at a moment.
type cpuSample struct {
	at  time.Time
	cpu time.Duration
}

// Use tells what a machine that is up uses now, wherever it is.
func (s *Service) Use(ctx context.Context, tenantID, id uuid.UUID) (Use, error) {
	ctx, cancel := context.WithTimeout(ctx, useTimeout)
	defer cancel()
	row, err := s.row(ctx, tenantID, id)
	if err != nil {
		return Use{}, err
	}
	if status := Status(row.Status); status != Ready && status != Starting {
		return Use{}, NotReady(status)
	}
	if s.Elsewhere(row) {
		return s.remoteUse(ctx, row)
	}
	p, err := s.Provider(row.Provider)
	if err != nil {
		return Use{}, err
	}
	return s.measured(ctx, p, row)
}

func (s *Service) measured(ctx context.Context, p sandbox.Provider, row queries.Machine) (Use, error) {
	limits, err := LimitsOf(row)
	if err != nil {
		return Use{}, err
	}
	stats, err := p.Stats(ctx, row.ProviderRef)
	if err != nil {
		return Use{}, Unreachable(err)
	}
	return Use{
		MemoryBytes: stats.MemoryBytes, MemoryLimit: stats.MemoryLimit, CPUs: s.sample(row.ID, stats), CPULimit: limits.CPUs, CPUSeconds: stats.CPUTime.Seconds(),
		Pids: stats.Pids, PidsLimit: limits.Pids, OOMKills: stats.OOMKills, DiskBytes: stats.DiskBytes, DiskLimit: stats.DiskLimit,
		MeasuredAt: stats.MeasuredAt, DiskMeasuredAt: stats.DiskMeasuredAt,
	}, nil
}

// LimitsOf are the limits that a machine was made with; none are known of one that was not made yet.
func LimitsOf(row queries.Machine) (l sandbox.Limits, err error) {
	if len(row.Limits) == 0 {
		return l, nil
	}
	if err := json.Unmarshal(row.Limits, &l); err != nil {
		return l, fmt.Errorf("read the limits of machine %s: %w", row.ID, err)
	}
	return l, nil
}

// sample keeps a look at a machine, and tells how many processors it used since the one before; nil: not known.
func (s *Service) sample(id uuid.UUID, stats sandbox.Stats) *float64 {
	now := cpuSample{stats.MeasuredAt, stats.CPUTime}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, ok := s.samples[id]
	took := now.at.Sub(before.at)
	known := ok && took >= sampleLeast && took <= sampleMost && now.cpu >= before.cpu // less: it was started anew
	if !ok || took >= sampleKept || now.cpu < before.cpu {
		s.samples[id] = now
	}
	if !known {
		return nil
	}
	cpus := (now.cpu - before.cpu).Seconds() / took.Seconds()
	return &cpus
}

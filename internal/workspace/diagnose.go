package workspace

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"managoat/internal/tenant"
	"managoat/internal/transcript"
)

// Limits of diagnostics: enough to see why, short enough to paste.
const (
	diagnosedOutput     = 4 << 10 // bytes of a step's output
	diagnosedOperations = 20
)

// Diagnostics are the facts of a workspace for whoever helps with it: what it is in, its machine, its last setup, and what was
// done with its machines. Redacted with the workspace's secrets.
type Diagnostics struct {
	Version    string             `json:"version" doc:"of the server"`
	At         time.Time          `json:"at"`
	RequestID  string             `json:"request_id"`
	Workspace  Workspace          `json:"workspace"`
	Machine    MachineFacts       `json:"machine"`
	Setup      Log                `json:"setup" doc:"its steps; the last 4 KiB of what each printed"`
	Operations []MachineOperation `json:"operations" doc:"what was done with its machines, the newest first"`
}

// MachineFacts are what is known of a machine beside what its workspace shows.
type MachineFacts struct {
	ID        uuid.UUID       `json:"id"`
	HostID    *uuid.UUID      `json:"host_id"`
	HostAway  bool            `json:"host_away"`
	Epoch     int64           `json:"epoch" doc:"of the operation that made it"`
	Error     json.RawMessage `json:"error" doc:"why it is not up, or did not start"`
	CreatedAt time.Time       `json:"created_at"`
	ReadyAt   *time.Time      `json:"ready_at"`
	WokenAt   *time.Time      `json:"woken_at"`
	ParkedAt  *time.Time      `json:"parked_at"`
	EndedAt   *time.Time      `json:"ended_at"`
}

// MachineOperation is something that was done with a machine.
type MachineOperation struct {
	ID        uuid.UUID       `json:"id"`
	Kind      string          `json:"kind" enum:"setup,park,wake,destroy"`
	State     string          `json:"state" enum:"pending,running,done,failed,cancelled"`
	Step      string          `json:"step"`
	Epoch     int64           `json:"epoch" doc:"how often a server took it"`
	Error     json.RawMessage `json:"error"`
	CreatedAt time.Time       `json:"created_at"`
	StartedAt *time.Time      `json:"started_at"`
	EndedAt   *time.Time      `json:"ended_at"`
}

// Diagnose gathers the facts of a workspace.
func (s *Service) Diagnose(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Diagnostics, error) {
	d := Diagnostics{Version: s.o.Version, At: time.Now().UTC(), RequestID: actor.RequestID, Operations: []MachineOperation{}}
	var err error
	if d.Workspace, err = s.Get(ctx, actor, id); err != nil {
		return Diagnostics{}, err
	}
	if d.Setup, err = s.SetupLog(ctx, actor, id); err != nil {
		return Diagnostics{}, err
	}
	for i := range d.Setup.Steps {
		step := &d.Setup.Steps[i]
		if over := len(step.Output) - diagnosedOutput; over > 0 {
			step.Output, step.DroppedBytes = strings.ToValidUTF8(step.Output[over:], ""), step.DroppedBytes+int64(over)
		}
	}
	q := s.db.Tenant(actor.TenantID)
	row, err := s.row(ctx, q, id)
	if err != nil {
		return Diagnostics{}, err
	}
	masks, err := s.masks(ctx, actor.TenantID, row.w.EnvironmentID, row.w.VaultID)
	if err != nil {
		return Diagnostics{}, err
	}
	gate := transcript.NewGate(transcript.NewRedactor(masks...))
	masked := func(raw json.RawMessage) json.RawMessage {
		if len(raw) == 0 {
			return nil
		}
		return gate.JSON(raw)
	}
	d.Machine = MachineFacts{ID: row.m.ID, HostID: row.m.HostID, HostAway: row.away, Epoch: row.m.Epoch, Error: masked(row.m.Error), CreatedAt: row.m.CreatedAt,
		ReadyAt: row.m.ReadyAt, WokenAt: row.m.WokenAt, ParkedAt: row.m.ParkedAt, EndedAt: row.m.EndedAt}
	ops, err := q.LastMachineOperations(ctx, id, diagnosedOperations)
	if err != nil {
		return Diagnostics{}, fmt.Errorf("list what was done with the machines: %w", err)
	}
	for _, op := range ops {
		d.Operations = append(d.Operations, MachineOperation{ID: op.ID, Kind: op.Kind, State: op.State, Step: op.Step, Epoch: op.Epoch, Error: masked(op.Error),
			CreatedAt: op.CreatedAt, StartedAt: op.StartedAt, EndedAt: op.EndedAt})
	}
	return d, nil
}

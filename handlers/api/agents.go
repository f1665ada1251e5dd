package api

import (
	"context"
	"strconv"

	"github.com/google/uuid"

	"managoat/internal/agent"
	"managoat/internal/refusal"
)

// Agents are the endpoints of agents and their versions.
type Agents struct{ Service *agent.Service }

// List answers GET /api/agents.
func (h Agents) List(ctx context.Context, in *PageQuery) (*Many[agent.Agent], error) {
	return PageOf(h.Service.List(ctx, Actor(ctx), in.Page()))
}

// Create answers POST /api/agents.
func (h Agents) Create(ctx context.Context, in *Create[agent.Config]) (*One[agent.Agent], error) {
	c := agent.New()
	if err := in.Body.Over(&c); err != nil {
		return nil, err
	}
	return OneOf(h.Service.Create(ctx, Actor(ctx), c))
}

// Get answers GET /api/agents/{id}.
func (h Agents) Get(ctx context.Context, in *ByID) (*One[agent.Agent], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Service.Get(ctx, Actor(ctx), id))
}

// AgentChange is a change of an agent, and the version that its editor saw.
type AgentChange struct {
	agent.Config
	Version int `json:"version" doc:"the version this change was made from; 0 or left out: whichever is the newest"`
}

// Update answers PATCH /api/agents/{id}.
func (h Agents) Update(ctx context.Context, in *Change[AgentChange]) (*One[agent.Agent], error) {
	return change(ctx, in, func(ctx context.Context, id uuid.UUID, over func(*AgentChange) error) (agent.Agent, error) {
		var seen AgentChange
		if err := over(&seen); err != nil {
			return agent.Agent{}, err
		}
		return h.Service.Update(ctx, Actor(ctx), id, seen.Version, func(c *agent.Config) error {
			edited := AgentChange{Config: *c}
			err := over(&edited)
			*c = edited.Config
			return err
		})
	})
}

// Delete answers DELETE /api/agents/{id}.
func (h Agents) Delete(ctx context.Context, in *ByID) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.Delete(ctx, Actor(ctx), id)
}

// Versions answers GET /api/agents/{id}/versions.
func (h Agents) Versions(ctx context.Context, in *struct {
	ByID
	PageQuery
}) (*Many[agent.Version], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return PageOf(h.Service.Versions(ctx, Actor(ctx), id, in.Page()))
}

// Version answers GET /api/agents/{id}/versions/{version}.
func (h Agents) Version(ctx context.Context, in *struct {
	ByID
	Version string `path:"version" doc:"number of the version"`
}) (*One[agent.Version], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(in.Version)
	if err != nil {
		return nil, refusal.NotFoundError()
	}
	return OneOf(h.Service.Version(ctx, Actor(ctx), id, n))
}

package stream

import (
	"time"

	"github.com/google/uuid"
)

// SetPace makes a hub's heartbeats and looks faster than a test would wait for.
func (h *Hub) SetPace(heartbeat, look time.Duration) { h.heartbeat, h.look = heartbeat, look }

// Payloads are what a hub would tell other servers of these conversations.
func (h *Hub) Payloads(tenantID uuid.UUID, conversations ...uuid.UUID) []string {
	for _, id := range conversations {
		h.changed[topic{tenantID, id}] = true
	}
	return h.payloads()
}

// MaxFollowers is how many one account may have.
const MaxFollowers = maxFollowers

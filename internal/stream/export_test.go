package stream

import "time"

// SetPace makes a hub's heartbeats and looks faster than a test would wait for.
func (h *Hub) SetPace(heartbeat, look time.Duration) { h.heartbeat, h.look = heartbeat, look }

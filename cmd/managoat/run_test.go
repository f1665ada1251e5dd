package main

import (
	"encoding/json"
	"testing"
)

// Whoever runs an agent on a machine that is being set up looks at nothing for minutes; what is over in a moment is not told.
func TestWhatHoldsATurnForLongIsTold(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{
		`{"status": "running", "waiting_for": {"reason": "setup", "detail": "packages"}}`: "waits for the machine's setup",
		`{"status": "pending", "waiting_for": {"reason": "queue", "detail": "3"}}`:        "waits behind turn 3",
		`{"status": "pending", "waiting_for": {"reason": "queue", "detail": ""}}`:         "",
		`{"status": "running", "waiting_for": {"reason": "session", "detail": ""}}`:       "",
		`{"status": "running", "waiting_for": {"reason": "host", "detail": ""}}`:          "waits for the server whose host runs the machine: it is away",
		`{"status": "completed", "waiting_for": null}`:                                    "",
	} {
		var v turnView
		if err := json.Unmarshal([]byte(state), &v); err != nil {
			t.Fatal(err)
		}
		if got := v.waits(); got != want {
			t.Errorf("%s: %q, want %q", state, got, want)
		}
	}
}

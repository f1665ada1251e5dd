package conformance

import (
	"context"
	"testing"
	"time"

	"managoat/sandbox"
)

// A doctor that hangs says nothing: a check that nothing ends is given up, with an error.
func TestACheckThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	err := give(ctx, Check{Name: "hangs", Run: func(T, sandbox.Provider) { <-release }}, nil, 20*time.Millisecond)
	if err == nil {
		t.Error("it is said to hold")
	}
}

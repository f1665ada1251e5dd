package local

import (
	"testing"

	"managoat/sandbox"
	"managoat/sandbox/conformance"
)

func open(t *testing.T, change ...func(*Options)) *Provider {
	t.Helper()
	opts := Options{Dir: t.TempDir(), GuestBinary: conformance.GuestBinary(t)}
	for _, f := range change {
		f(&opts)
	}
	p, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestConformanceAsRoot(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) sandbox.Provider { return open(t) })
}

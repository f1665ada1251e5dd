package local

import (
	"context"
	"io/fs"
	"syscall"

	"managoat/sandbox"
)

func owner(st fs.FileInfo) (uid, gid int) {
	s := st.Sys().(*syscall.Stat_t)
	return int(s.Uid), int(s.Gid)
}

func (p *Provider) ready(ctx context.Context) error {
	p.probe.Do(func() {
		p.caps.MemoryLimit, p.caps.CPULimit, p.caps.PidsLimit, _ = p.groups.prepare()
		p.caps.Root = true
		p.caps.UIDRange = true
	})
	return nil
}
func (n *namespaces) probe(ctx context.Context, caps *sandbox.Capabilities) error { return nil }

package transcript

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"managoat/db"
	"managoat/queries"
)

// shard is one writer. It writes what became ready while its last commit ran: there is no window and no timer.
type shard struct {
	w    *Writer
	kick chan struct{}

	mu    sync.Mutex
	ready []*backlog

	away bool // PostgreSQL did not take the last batch, and that was said
}

func (s *shard) push(b *backlog) {
	s.mu.Lock()
	s.ready = append(s.ready, b)
	s.mu.Unlock()
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *shard) run() {
	for {
		select {
		case <-s.kick:
			for s.round() {
			}
		case <-s.w.ctx.Done():
			return
		}
	}
}

// group is what one conversation has in a batch.
type group struct {
	b     *backlog
	left  []*entry      // neither written nor refused
	pause time.Duration // before it is tried again; 0: at once
	was   time.Duration // the pause before this try
	base  int64         // the number before its first row, once written
}

// later leaves the conversation alone for twice as long as before, within bounds.
func (g *group) later(most time.Duration) { g.pause = min(max(2*g.was, firstPause), most) }

// settle ends every entry of a group that was written.
func (g *group) settle() {
	last := g.base
	for _, e := range g.left {
		last += int64(len(e.rows))
		g.b.settle(e, last, nil)
	}
	g.left = nil
}

// refuse ends one entry with an error.
func (g *group) refuse(e *entry, err error) {
	g.left = slices.DeleteFunc(g.left, func(o *entry) bool { return o == e })
	g.b.settle(e, 0, err)
}

// rows is how many rows the group has.
func (g *group) rows() (n int32) {
	for _, e := range g.left {
		n += int32(len(e.rows))
	}
	return n
}

// round writes one batch, a transaction for each account in it. false: nothing was ready.
func (s *shard) round() bool {
	var accounts []uuid.UUID
	groups := map[uuid.UUID][]*group{}
	now := time.Now()
	for room := int64(batchBytes); room > 0 && s.w.ctx.Err() == nil; {
		b := s.pop()
		if b == nil {
			break
		}
		g := &group{b: b}
		g.left, g.was = b.take(now, room)
		for _, e := range slices.Clone(g.left) {
			room -= e.room + rowOverhead
			s.prepare(g, e)
		}
		if g.rows() == 0 {
			g.settle() // marks, with nothing before them
		}
		if groups[b.tenantID] == nil {
			accounts = append(accounts, b.tenantID)
		}
		groups[b.tenantID] = append(groups[b.tenantID], g)
	}
	for _, tenantID := range accounts {
		s.write(tenantID, groups[tenantID])
		for _, g := range groups[tenantID] {
			g.b.put(g.left, g.pause)
		}
	}
	return len(accounts) > 0
}

func (s *shard) pop() *backlog {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 {
		s.ready = nil
		return nil
	}
	b := s.ready[0]
	s.ready = s.ready[1:]
	return b
}

// prepare encodes what was still growing until now.
func (s *shard) prepare(g *group, e *entry) {
	if e.columns != nil || len(e.rows) == 0 {
		return
	}
	c, err := encode(g.b.id, e.rows)
	if err != nil {
		g.refuse(e, err)
		return
	}
	e.columns = &c
}

// write writes the groups of one account. What it can neither write nor refuse stays in them, with a pause.
func (s *shard) write(tenantID uuid.UUID, groups []*group) {
	groups = slices.DeleteFunc(slices.Clone(groups), func(g *group) bool { return len(g.left) == 0 || g.pause > 0 })
	if len(groups) == 0 || s.w.ctx.Err() != nil {
		return
	}
	written, err := s.commit(tenantID, groups)
	var blame *blamed
	switch {
	case err == nil:
		s.came(nil)
		for _, g := range written {
			g.settle()
			s.w.notify.Conversation(tenantID, g.b.id)
		}
	case errors.As(err, &blame) && transient(blame.err):
		blame.g.later(lockPause)
		s.write(tenantID, groups)
	case errors.As(err, &blame):
		blame.g.refuse(blame.e, blame.err)
		s.write(tenantID, groups)
	case refusing(err) && len(groups) > 1:
		s.write(tenantID, groups[:len(groups)/2])
		s.write(tenantID, groups[len(groups)/2:])
	case refusing(err) && len(groups[0].left) > 1:
		s.halves(tenantID, groups[0])
	case refusing(err):
		groups[0].refuse(groups[0].left[0], err)
	default:
		s.came(err)
		for _, g := range groups {
			g.later(awayPause)
		}
	}
}

// halves finds the entry that PostgreSQL refuses.
func (s *shard) halves(tenantID uuid.UUID, g *group) {
	n := len(g.left) / 2
	a := &group{b: g.b, left: slices.Clone(g.left[:n]), was: g.was}
	b := &group{b: g.b, left: slices.Clone(g.left[n:]), was: g.was}
	s.write(tenantID, []*group{a})
	if len(a.left) == 0 { // their order stays
		s.write(tenantID, []*group{b})
	}
	g.left, g.pause = slices.Concat(a.left, b.left), max(a.pause, b.pause)
}

// came notes whether PostgreSQL takes what it is given, and says so when that changes.
func (s *shard) came(err error) {
	if away := err != nil; away != s.away && s.w.ctx.Err() == nil {
		s.away = away
		if away {
			s.w.log.Warn("PostgreSQL does not take rows of transcripts now; they wait", "error", err)
		} else {
			s.w.log.Info("PostgreSQL takes rows of transcripts again")
		}
	}
}

// blamed is an error that one entry brought.
type blamed struct {
	g   *group
	e   *entry
	err error
}

func (b *blamed) Error() string { return b.err.Error() }
func (b *blamed) Unwrap() error { return b.err }

// commit writes groups of one account in one transaction and returns those that were written. Those that could not be
// now have a pause.
func (s *shard) commit(tenantID uuid.UUID, groups []*group) (written []*group, err error) {
	ctx, cancel := context.WithTimeout(s.w.ctx, writeTimeout)
	defer cancel()
	// In one order everywhere.
	slices.SortFunc(groups, func(a, b *group) int { return bytes.Compare(a.b.id[:], b.b.id[:]) })
	xid := ""
	err = s.w.db.InTenant(ctx, tenantID, func(tx db.Tx) error {
		if err := s.fences(ctx, tx, groups); err != nil {
			return err
		}
		if err := s.hooks(ctx, tx, groups); err != nil {
			return err
		}
		var err error
		written, xid, err = s.insert(ctx, tx, groups)
		return err
	})
	if err != nil && xid != "" { // the commit's answer was lost, and not necessarily the commit
		err = s.outcome(xid, err)
	}
	return written, err
}

// fences refuses entries whose owner lost its operation, and holds the operations of the others until the commit.
func (s *shard) fences(ctx context.Context, tx db.Tx, groups []*group) error {
	held := map[Fence]bool{}
	var p queries.HoldFencesParams
	for _, g := range groups {
		for _, e := range g.left {
			for _, r := range e.rows {
				if r.Fence != nil && !held[*r.Fence] {
					held[*r.Fence] = true
					p.Ids, p.Owners, p.Epochs = append(p.Ids, r.Fence.OperationID), append(p.Owners, r.Fence.Owner), append(p.Epochs, r.Fence.Epoch)
				}
			}
		}
	}
	if len(held) == 0 {
		return nil
	}
	rows, err := tx.HoldFences(ctx, p)
	if err != nil {
		return err
	}
	clear(held)
	for _, r := range rows {
		held[Fence{r.ID, r.Owner, r.Epoch}] = true
	}
	for _, g := range groups {
		for _, e := range slices.Clone(g.left) {
			for _, r := range e.rows {
				if r.Fence == nil || held[*r.Fence] {
					continue
				}
				stands, err := tx.FenceStands(ctx, queries.FenceStandsParams{ID: r.Fence.OperationID, Owner: r.Fence.Owner, Epoch: r.Fence.Epoch})
				switch {
				case err != nil:
					return err
				case stands: // somebody has its row locked
					g.later(lockPause)
				default:
					g.refuse(e, ErrFenced)
				}
				break
			}
		}
	}
	return nil
}

// hooks runs what rows want to write in the same transaction. The conversations are locked before, so that the locks it
// takes are free.
func (s *shard) hooks(ctx context.Context, tx db.Tx, groups []*group) error {
	var ids []uuid.UUID
	for _, g := range groups {
		if g.hooked() && g.pause == 0 {
			ids = append(ids, g.b.id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	free, err := tx.LockTranscripts(ctx, ids)
	if err != nil {
		return err
	}
	if err := s.patience(ctx, tx); err != nil {
		return err
	}
	for _, g := range groups {
		if g.pause > 0 || !g.hooked() {
			continue
		}
		if !slices.Contains(free, g.b.id) {
			if err := s.left(ctx, tx, g); err != nil {
				return err
			}
			continue
		}
		for _, e := range g.left {
			for _, r := range e.rows {
				if r.Within == nil {
					continue
				}
				if err := r.Within(ctx, tx); err != nil {
					return &blamed{g, e, err}
				}
			}
		}
	}
	return nil
}

// patience bounds how long others may hold up the transaction by a lock.
func (s *shard) patience(ctx context.Context, tx db.Tx) error {
	return tx.Exec(ctx, "set local lock_timeout = '"+lockPatience+"'")
}

// insert numbers and inserts the rows.
func (s *shard) insert(ctx context.Context, tx db.Tx, groups []*group) (written []*group, xid string, err error) {
	var p queries.AppendBatchParams
	for _, g := range groups {
		n := g.rows()
		switch {
		case g.pause > 0:
			continue
		case n == 0: // marks only
			written = append(written, g)
			continue
		}
		p.Ids, p.Counts = append(p.Ids, g.b.id), append(p.Counts, n)
		ord := int32(0)
		for _, e := range g.left {
			if e.columns == nil {
				continue
			}
			for range e.rows {
				ord++
				p.Of, p.Ords = append(p.Of, g.b.id), append(p.Ords, ord)
			}
			p.TurnIds, p.Types = append(p.TurnIds, e.columns.turns...), append(p.Types, e.columns.types...)
			p.Bodies, p.Raws = append(p.Bodies, e.columns.bodies...), append(p.Raws, e.columns.raws...)
		}
	}
	if len(p.Ids) == 0 {
		return written, "", nil
	}
	rows, err := tx.AppendBatch(ctx, p)
	if err != nil {
		return nil, "", fmt.Errorf("append to transcripts: %w", err)
	}
	base := map[uuid.UUID]int64{}
	for _, r := range rows {
		base[r.ConversationID], xid = r.Base, r.Xid
	}
	for _, g := range groups {
		if g.pause > 0 || g.rows() == 0 {
			continue
		}
		at, ok := base[g.b.id]
		if !ok {
			if err := s.left(ctx, tx, g); err != nil {
				return nil, "", err
			}
			continue
		}
		g.base = at
		for _, e := range g.left {
			if e.columns != nil && len(e.columns.tools) > 0 {
				if err := s.patience(ctx, tx); err != nil {
					return nil, "", err
				}
				if err := e.columns.keep(ctx, tx, at); err != nil {
					return nil, "", &blamed{g, e, err}
				}
			}
			at += int64(len(e.rows))
		}
		written = append(written, g)
	}
	return written, xid, nil
}

// left handles a conversation that was left out: its rows wait until it is free, or are refused when it has no transcript.
func (s *shard) left(ctx context.Context, tx db.Tx, g *group) error {
	exists, err := tx.TranscriptExists(ctx, g.b.id)
	if err != nil {
		return err
	}
	if exists {
		g.later(lockPause)
		return nil
	}
	for _, e := range slices.Clone(g.left) {
		g.refuse(e, noTranscript(g.b.id))
	}
	return nil
}

// outcome finds out what became of a transaction whose commit was not answered: nil when it was made.
func (s *shard) outcome(xid string, cause error) error {
	for pause := firstPause; ; pause = min(2*pause, awayPause) {
		ctx, cancel := context.WithTimeout(s.w.ctx, writeTimeout)
		status, err := s.w.db.Lookup().TransactionStatus(ctx, xid)
		cancel()
		switch {
		case err == nil && status == "committed":
			return nil
		case err == nil && status != "in progress":
			return cause
		}
		s.came(cmp.Or(err, cause))
		select {
		case <-time.After(pause):
		case <-s.w.ctx.Done():
			return cause
		}
	}
}

// hooked tells whether a row of the group writes something else within.
func (g *group) hooked() bool {
	for _, e := range g.left {
		for _, r := range e.rows {
			if r.Within != nil {
				return true
			}
		}
	}
	return false
}

// refusing tells that PostgreSQL does not want what it was given, now or ever.
func refusing(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !transient(err)
}

// transient tells that the same may be taken later: PostgreSQL is away, busy, full, or a lock was in the way.
func transient(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code[:2] {
		case "08", "25", "40", "53", "55", "57", "58": // connection, read-only, rollback, resources, locks, operator, system
			return true
		}
		return false
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

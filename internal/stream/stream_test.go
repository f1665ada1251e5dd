package stream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/refusal"
	"managoat/internal/stream"
	"managoat/internal/transcript"
	"managoat/internal/transcript/transcripttest"
)

// process is what one server has: its own pool, hub, writer and reader on the test's database.
type process struct {
	*db.DB
	hub    *stream.Hub
	writer *transcript.Writer
	reader *stream.Reader
	stop   func() // what a server does when it stops
}

func newProcess(tb testing.TB, d *dbtest.Database) *process {
	tb.Helper()
	pool, err := db.Open(context.Background(), d.URLs, db.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	p := &process{DB: pool, hub: stream.NewHub(pool, log)}
	p.writer = transcript.NewWriter(pool, p.hub)
	p.reader = stream.NewReader(pool, p.hub)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { p.hub.Run(ctx) })
	p.stop = func() {
		cancel()
		wg.Wait()
	}
	tb.Cleanup(func() {
		p.stop()
		pool.Close()
	})
	return p
}

func conversation(tb testing.TB, d *dbtest.Database, tenantID uuid.UUID) uuid.UUID {
	return transcripttest.Conversation(tb, d, tenantID)
}

func notice(n int) transcript.Row {
	return transcript.Row{Type: transcript.Notice, Body: transcript.NoticeBody{Code: "test", Text: fmt.Sprint(n)}}
}

func said(r transcript.Stored) string {
	var b transcript.NoticeBody
	if json.Unmarshal(r.Body, &b) != nil {
		return string(r.Body)
	}
	return b.Text
}

// collect follows until it has n rows.
func collect(t *testing.T, p *process, q stream.Query, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var got []string
	last := q.After
	for item, err := range p.reader.Follow(ctx, q) {
		if err != nil {
			t.Fatal(err)
		}
		if item.Kind == stream.Row {
			if item.Event.Seq <= last {
				t.Fatalf("row %d came after %d", item.Event.Seq, last)
			}
			last = item.Event.Seq
			got = append(got, said(item.Event))
		}
		if len(got) == n {
			return got
		}
	}
	t.Fatalf("the stream ended after %d of %d rows: %v", len(got), n, ctx.Err())
	return nil
}

func inOrder(t *testing.T, got []string, from int) {
	t.Helper()
	for i, g := range got {
		if g != fmt.Sprint(from+i) {
			t.Fatalf("row %d says %s in %v", i, g, got)
		}
	}
}

func TestReplayAndLiveGiveEveryRowOnceInOrder(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	ctx := context.Background()
	const before, after = 700, 300 // more than one page
	rows := make([]transcript.Row, before)
	for i := range rows {
		rows[i] = notice(i)
	}
	if err := p.writer.Append(ctx, tenantID, id, rows...); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range after {
			if err := p.writer.Append(ctx, tenantID, id, notice(before+i)); err != nil {
				t.Error(err)
			}
		}
	})
	got := collect(t, p, stream.Query{TenantID: tenantID, ConversationID: id, Wait: true}, before+after)
	inOrder(t, got, 0)
	wg.Wait()
	// Rows that were written while nobody followed come when somebody does.
	inOrder(t, collect(t, p, stream.Query{TenantID: tenantID, ConversationID: id, After: 990, Wait: true}, 10), 990)
}

// Two servers write one conversation at once and a third follows: sequence order is commit order, so no row is passed
// over by a cursor.
func TestTwoServersWriteOneConversationAndAThirdMissesNothing(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a, b, c := newProcess(t, d), newProcess(t, d), newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	const each = 200
	var wg sync.WaitGroup
	for _, p := range []*process{a, b} {
		wg.Go(func() {
			for i := range each {
				if err := p.writer.Append(context.Background(), tenantID, id, notice(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	got := collect(t, c, stream.Query{TenantID: tenantID, ConversationID: id, Wait: true}, 2*each)
	wg.Wait()
	seen := map[string]int{}
	for _, g := range got {
		seen[g]++
	}
	for i := range each {
		if seen[fmt.Sprint(i)] != 2 {
			t.Fatalf("row %d came %d times", i, seen[fmt.Sprint(i)])
		}
	}
}

func TestALostListenConnectionLosesNothing(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	writer, reader := newProcess(t, d), newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	owner := d.Owner(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	n := 0
	for item, err := range reader.reader.Follow(ctx, stream.Query{TenantID: tenantID, ConversationID: id, Wait: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if item.Kind != stream.Open && item.Kind != stream.Row {
			continue
		}
		if n == 3 {
			return
		}
		// Cut every listener, then write: the row is found when it listens again, long before a heartbeat.
		if _, err := owner.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where query like 'listen %' and datname = current_database()"); err != nil {
			t.Fatal(err)
		}
		if err := writer.writer.Append(ctx, tenantID, id, notice(n)); err != nil {
			t.Fatal(err)
		}
		n++
	}
	t.Fatalf("the stream ended after %d rows", n)
}

func TestAFilterGivesTheSameRowsInListsReplayAndLive(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	ctx := context.Background()
	write := func() {
		for i := range 3 {
			rows := []transcript.Row{
				notice(i),
				{Type: transcript.ToolOutput, Body: transcript.ToolOutputBody{ID: "t", Stream: "stderr", Text: fmt.Sprint(i)}},
				{Type: transcript.Message, Body: transcript.MessageBody{Text: fmt.Sprint(i)}},
			}
			if err := p.writer.Append(ctx, tenantID, id, rows...); err != nil {
				t.Fatal(err)
			}
		}
	}
	write()
	for name, q := range map[string]stream.Query{
		"types":   {Types: []string{transcript.Notice}},
		"streams": {Streams: []string{"stderr"}},
		"unknown": {Streams: []string{"nothing"}},
	} {
		q.TenantID, q.ConversationID = tenantID, id
		list, _, err := p.reader.List(ctx, q, 100)
		if err != nil {
			t.Fatal(err)
		}
		want := 3
		if name == "unknown" {
			want = 0
		}
		replay := 0
		for item, err := range p.reader.Follow(ctx, q) {
			if err != nil {
				t.Fatal(err)
			}
			if item.Kind == stream.Row {
				replay++
			}
		}
		if len(list) != want || replay != want {
			t.Errorf("%s: list %d, replay %d, want %d", name, len(list), replay, want)
		}
	}
	live := make(chan []string)
	opened := make(chan struct{})
	go func() {
		var got []string
		for item, err := range p.reader.Follow(ctx, stream.Query{TenantID: tenantID, ConversationID: id, After: 9, Types: []string{transcript.Notice}, Wait: true}) {
			if err != nil {
				t.Error(err)
				break
			}
			if item.Kind == stream.Open {
				close(opened)
			}
			if item.Kind == stream.Row {
				if got = append(got, said(item.Event)); len(got) == 3 {
					break
				}
			}
		}
		live <- got
	}()
	<-opened
	write()
	inOrder(t, <-live, 0)
}

func TestAForeignConversationOrCursorShowsNothing(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	mine, theirs := d.Account(t), d.Account(t)
	id, other := conversation(t, d, mine), conversation(t, d, mine)
	foreign := conversation(t, d, theirs)
	ctx := context.Background()
	for _, c := range []uuid.UUID{id, other} {
		for i := range 3 {
			if err := p.writer.Append(ctx, mine, c, notice(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, err := range p.reader.Follow(ctx, stream.Query{TenantID: mine, ConversationID: foreign, Wait: true}) {
		if !refusal.Is(err, refusal.NotFound) {
			t.Fatalf("another account's conversation answered %v", err)
		}
	}
	var kinds []stream.Kind
	var got []string
	for item, err := range p.reader.Follow(ctx, stream.Query{TenantID: mine, ConversationID: id, After: 999}) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, item.Kind)
		if item.Kind == stream.Row {
			got = append(got, said(item.Event))
		}
	}
	if kinds[0] != stream.Reset || len(got) != 3 {
		t.Fatalf("a cursor beyond the end gave %v with %v", kinds, got)
	}
}

func TestAStreamEndsWhenItsConversationHasEnded(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ended := false
	for item, err := range p.reader.Follow(ctx, stream.Query{TenantID: tenantID, ConversationID: id, Wait: true}) {
		if err != nil {
			t.Fatal(err)
		}
		switch item.Kind {
		case stream.Open:
			err := p.InTenant(ctx, tenantID, func(tx db.Tx) error {
				if err := tx.Exec(ctx, "update conversations set status = 'terminated' where id = $1", id); err != nil {
					return err
				}
				return p.writer.AppendTx(ctx, tx, tenantID, id, transcript.Row{Type: transcript.Stage, Body: transcript.StageBody{Stage: "terminate", State: "done"}})
			})
			if err != nil {
				t.Fatal(err)
			}
		case stream.End:
			ended = true
		}
	}
	if !ended {
		t.Fatal("the stream stopped without saying end")
	}
}

func TestTheAccountsStreamResumesAndBeginsNowWithoutACursor(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p, q := newProcess(t, d), newProcess(t, d)
	tenantID := d.Account(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	account := stream.NewAccount(p.hub)
	write := func(n int) {
		err := p.InTenant(ctx, tenantID, func(tx db.Tx) error {
			return account.AppendTx(ctx, tx, tenantID, stream.Event{Name: stream.WorkspaceStatus, Body: map[string]int{"n": n}})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	write(2)
	for item, err := range q.reader.FollowAccount(ctx, tenantID, stream.FromNow, true) {
		if err != nil {
			t.Fatal(err)
		}
		if item.Kind == stream.Open {
			write(3)
		}
		if item.Kind == stream.Row {
			if string(item.Account.Body) != `{"n": 3}` {
				t.Fatalf("%s", item.Account.Body)
			}
			break
		}
	}
	var got []string
	for item, err := range q.reader.FollowAccount(ctx, tenantID, 1, false) {
		if err != nil {
			t.Fatal(err)
		}
		if item.Kind == stream.Row {
			got = append(got, string(item.Account.Body))
		}
	}
	if strings.Join(got, " ") != `{"n": 2} {"n": 3}` {
		t.Fatalf("%v", got)
	}
}

// PostgreSQL drops every connection of both servers again and again: a follower that goes on from its cursor when a read of
// its own fails sees every row once.
func TestAFollowerMissesNothingWhilePostgreSQLDropsConnections(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	writer, reader := newProcess(t, d), newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const total, cuts = 120, 6
	owner := d.Owner(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range total {
			for ctx.Err() == nil {
				if err := writer.writer.Append(ctx, tenantID, id, notice(i)); err == nil {
					break // else it found its connection dead before it wrote
				}
			}
			if i%(total/cuts) == 0 {
				if _, err := owner.Exec(ctx, "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'managoat_app' and datname = current_database()"); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	var got []string
	at := int64(0)
	for len(got) < total && ctx.Err() == nil {
		for item, err := range reader.reader.Follow(ctx, stream.Query{TenantID: tenantID, ConversationID: id, After: at, Wait: true}) {
			if err != nil {
				break // the client connects again
			}
			if item.Kind != stream.Row {
				continue
			}
			at = item.Event.Seq
			if got = append(got, said(item.Event)); len(got) == total {
				break
			}
		}
	}
	<-done
	if len(got) != total {
		t.Fatalf("%d rows of %d", len(got), total)
	}
	inOrder(t, got, 0)
}

// A notification holds ids only, and PostgreSQL refuses one of 8,000 bytes.
func TestWhatOtherServersAreToldFitsIntoNotifications(t *testing.T) {
	t.Parallel()
	h := stream.NewHub(nil, slog.New(slog.DiscardHandler))
	tenantID := uuid.New()
	for _, n := range []int{0, 1, 103, 104, 105, 106, 5000} {
		var ids []uuid.UUID
		for range n {
			ids = append(ids, uuid.New())
		}
		got := map[string]bool{}
		origin := ""
		for _, p := range h.Payloads(tenantID, ids...) {
			if len(p) > 7999 {
				t.Fatalf("%d conversations: a payload of %d bytes", n, len(p))
			}
			fields := strings.Fields(p)
			if origin == "" {
				origin = fields[0]
			}
			if fields[0] != origin || len(fields) < 2 {
				t.Fatalf("%q", p)
			}
			for _, f := range fields[1:] {
				got[f] = true
			}
		}
		for _, id := range ids {
			if !got[tenantID.String()+"/"+id.String()] {
				t.Fatalf("%d conversations: %s is not told", n, id)
			}
		}
		if len(got) != n {
			t.Fatalf("%d of %d", len(got), n)
		}
	}
}

// A stream lives as long as its client likes: without a bound one account would take every connection of the server.
func TestAnAccountThatFollowsWithoutEndIsRefusedAndOthersAreNot(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	greedy, other := d.Account(t), d.Account(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opened := make(chan error, stream.MaxFollowers)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range stream.MaxFollowers {
		wg.Go(func() {
			for item, err := range p.reader.FollowAccount(ctx, greedy, stream.FromNow, true) {
				if err != nil || item.Kind == stream.Open {
					opened <- err
				}
			}
		})
	}
	for range stream.MaxFollowers {
		if err := <-opened; err != nil {
			t.Fatal(err)
		}
	}
	first := func(ctx context.Context, account uuid.UUID) error {
		for _, err := range p.reader.FollowAccount(ctx, account, stream.FromNow, true) {
			return err
		}
		return nil
	}
	if err := first(ctx, greedy); !refusal.Is(err, refusal.TooManyStreams) {
		t.Errorf("one more got %v", err)
	}
	if err := first(ctx, other); err != nil {
		t.Errorf("another account got %v", err)
	}
	cancel()
	wg.Wait()
	if err := first(context.Background(), greedy); err != nil {
		t.Errorf("when its streams have ended: %v", err)
	}
}

// Package transcripttest makes what tests of transcripts and streams stand on.
package transcripttest

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"managoat/db/dbtest"
)

// Conversation makes a conversation, with a transcript, of the fewest rows that the schema allows.
func Conversation(tb testing.TB, d *dbtest.Database, tenantID uuid.UUID) uuid.UUID {
	tb.Helper()
	return Conversations(tb, d, tenantID, 1)[0]
}

// Conversations makes several that share their workspace and agent.
func Conversations(tb testing.TB, d *dbtest.Database, tenantID uuid.UUID, n int) []uuid.UUID {
	tb.Helper()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	conn := d.Owner(tb)
	run := func(sql string, args ...any) {
		tb.Helper()
		if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
			tb.Fatal(err)
		}
	}
	run("insert into environments (tenant_id, id, name) values ($1, $2, 'e ' || $2::uuid::text)", tenantID, ids[0])
	run("insert into workspaces (tenant_id, id, name, environment_id, provider, status) values ($1, $2, 'w ' || $2::uuid::text, $2, 'local', 'ready')", tenantID, ids[0])
	run("insert into agent_versions (tenant_id, agent_id, version, config) values ($1, $2, 1, '{}')", tenantID, ids[0])
	run(`insert into conversations (tenant_id, id, agent_id, agent_version, workspace_id, runtime, cwd)
		select $1, unnest($3::uuid[]), $2, 1, $2, 'acp', '/home/sprite'`, tenantID, ids[0], ids)
	run("insert into conversation_heads (tenant_id, conversation_id) select $1, unnest($2::uuid[])", tenantID, ids)
	return ids
}

// Operation makes a running operation of a conversation.
func Operation(tb testing.TB, d *dbtest.Database, tenantID, conversationID, owner uuid.UUID, epoch int64) uuid.UUID {
	tb.Helper()
	id := uuid.Must(uuid.NewV7())
	_, err := d.Owner(tb).Exec(context.Background(), `insert into operations (tenant_id, id, kind, conversation_id, state, owner, epoch, lease_until)
		values ($1, $2, 'turn', $3, 'running', $4, $5, now() + interval '1 minute')`, tenantID, id, conversationID, owner, epoch)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

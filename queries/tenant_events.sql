-- name: AppendTenantEvent :exec
with head as (
    update tenant_heads set event_seq = event_seq + 1 where tenant_id = app_tenant() returning event_seq
)
insert into tenant_events (tenant_id, seq, name, workspace_id, setup_id, body)
select app_tenant(), head.event_seq, @name, sqlc.narg(workspace_id), sqlc.narg(setup_id), @body from head;

-- name: AppendConversationStatus :exec
-- conversation.status: a conversation as the transaction leaves it, with its first turn that waits or runs.
with head as (
    update tenant_heads set event_seq = event_seq + 1 where tenant_id = app_tenant() returning event_seq
)
insert into tenant_events (tenant_id, seq, name, workspace_id, body)
select app_tenant(), head.event_seq, 'conversation.status', c.workspace_id,
    jsonb_build_object('conversation_id', c.id, 'workspace_id', c.workspace_id, 'title', c.title, 'status', c.status, 'turn_id', t.id)
        || jsonb_strip_nulls(jsonb_build_object('turn_number', t.turn_number, 'turn_status', t.status, 'waiting_for', nullif(t.waiting_for, '')))
from head, conversations c
left join lateral (
    select * from turns t where t.tenant_id = c.tenant_id and t.conversation_id = c.id and t.status in ('pending', 'running') order by t.turn_number limit 1
) t on true
where c.tenant_id = app_tenant() and c.id = @conversation_id::uuid;

-- name: TenantEventsAfter :many
select * from tenant_events where tenant_id = app_tenant() and seq > @after order by seq limit @at_most;

-- name: TenantHead :one
select event_seq from tenant_heads where tenant_id = app_tenant();

-- name: DeleteSetupEvents :exec
-- Rows of a workspace's earlier setups go when the next begins.
delete from tenant_events where tenant_id = app_tenant() and workspace_id = @workspace_id and setup_id is not null and setup_id <> @keep;

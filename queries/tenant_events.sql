-- name: AppendTenantEvent :exec
with head as (
    update tenant_heads set event_seq = event_seq + 1 where tenant_id = app_tenant() returning event_seq
)
insert into tenant_events (tenant_id, seq, name, workspace_id, setup_id, body)
select app_tenant(), head.event_seq, @name, sqlc.narg(workspace_id), sqlc.narg(setup_id), @body from head;

-- name: TenantEventsAfter :many
select * from tenant_events where tenant_id = app_tenant() and seq > @after order by seq limit @at_most;

-- name: TenantHead :one
select event_seq from tenant_heads where tenant_id = app_tenant();

-- name: DeleteSetupEvents :exec
-- Rows of a workspace's earlier setups go when the next begins.
delete from tenant_events where tenant_id = app_tenant() and workspace_id = @workspace_id and setup_id is not null and setup_id <> @keep;

-- name: InsertWorkspace :one
insert into workspaces (tenant_id, id, name, implicit, environment_id, vault_id, provider, status, machine_id, setup_id, metadata)
values (app_tenant(), @id, @name, @implicit, sqlc.narg('environment_id'), sqlc.narg('vault_id'), @provider, 'provisioning',
    @machine_id::uuid, @setup_id::uuid, @metadata)
returning *;

-- name: Workspace :one
-- A workspace with its current machine. waiting: why what is under way with the machine cannot go on now. away: the server of
-- the machine's host is. draining: so is that host.
select sqlc.embed(w), sqlc.embed(m),
    coalesce((select o.error->>'message' from operations o where o.tenant_id = w.tenant_id and o.workspace_id = w.id and o.state = 'pending'
        and o.kind in ('setup', 'park', 'wake', 'rebuild', 'destroy')), '')::text as waiting,
    host_away(m.host_id)::bool as away, host_draining(m.host_id)::bool as draining
from workspaces w
join machines m on m.tenant_id = w.tenant_id and m.id = w.machine_id
where w.tenant_id = app_tenant() and w.id = @id;

-- name: Workspaces :many
select sqlc.embed(w), sqlc.embed(m),
    coalesce((select o.error->>'message' from operations o where o.tenant_id = w.tenant_id and o.workspace_id = w.id and o.state = 'pending'
        and o.kind in ('setup', 'park', 'wake', 'rebuild', 'destroy')), '')::text as waiting,
    coalesce(h.away, false)::bool as away, coalesce(h.draining, false)::bool as draining
from workspaces w
join machines m on m.tenant_id = w.tenant_id and m.id = w.machine_id
left join (select id, host_away(id) as away, draining_at is not null as draining from hosts) h on h.id = m.host_id -- asked once for each host
where w.tenant_id = app_tenant() and w.status <> 'deleted' and (@implicit::bool or not w.implicit)
  and (sqlc.narg('after')::uuid is null or w.id < sqlc.narg('after'))
order by w.id desc limit @at_most;

-- name: IdleWorkspaces :many
-- Since when nothing is done in workspaces whose machine is up. Those in which a turn runs or waits are not among them.
select w.id, idle.since::timestamptz as since from workspaces w
join machines m on m.tenant_id = w.tenant_id and m.id = w.machine_id
cross join lateral (select idle_since(w.tenant_id, w.id, m.woken_at) as since) idle
where w.tenant_id = app_tenant() and w.id = any(@ids::uuid[]) and w.status = 'ready' and m.status = 'ready' and m.transition = ''
  and idle.since is not null;

-- name: LockWorkspace :one
select * from workspaces where tenant_id = app_tenant() and id = @id for update;

-- name: HoldWorkspace :exec
-- Keeps a workspace from changing its machine until the transaction ends: who puts another in its place locks it.
select from workspaces where tenant_id = app_tenant() and id = @id for key share;

-- name: WorkspacesBuiltFrom :many
-- Ready workspaces that an edit of their environment may make stale.
select sqlc.embed(w), sqlc.embed(m) from workspaces w
join machines m on m.tenant_id = w.tenant_id and m.id = w.machine_id
where w.tenant_id = app_tenant() and w.environment_id = @environment_id::uuid and w.status = 'ready'
order by w.id;

-- name: ProvisionWorkspace :execrows
-- The one way into a new setup: the first of several that arrive together finds the row as they all saw it.
update workspaces set status = 'provisioning', machine_id = @machine_id::uuid, setup_id = @setup_id::uuid, setup_step = '', error = null, updated_at = now()
where tenant_id = app_tenant() and id = @id and status in ('failed', 'ready') and setup_id = @previous::uuid;

-- name: ReplaceMachine :exec
-- A setup that begins again begins on a new machine.
update workspaces set machine_id = @machine_id::uuid, setup_step = '', updated_at = now()
where tenant_id = app_tenant() and id = @id;

-- name: SetWorkspaceStep :exec
update workspaces set setup_step = @setup_step, updated_at = now() where tenant_id = app_tenant() and id = @id;

-- name: EndWorkspaceSetup :exec
update workspaces set status = @status, error = sqlc.narg('error'), setup_step = @setup_step, updated_at = now(), last_active_at = now()
where tenant_id = app_tenant() and id = @id and status = 'provisioning';

-- name: SetWorkspaceMetadata :exec
update workspaces set metadata = @metadata, updated_at = now() where tenant_id = app_tenant() and id = @id;

-- name: DeletingWorkspace :execrows
update workspaces set status = 'deleting', updated_at = now()
where tenant_id = app_tenant() and id = @id and status not in ('deleting', 'deleted');

-- name: DeletedWorkspace :exec
update workspaces set status = 'deleted', setup_step = '', updated_at = now() where tenant_id = app_tenant() and id = @id;

-- name: RequireMachine :exec
-- Refuses the transaction (db.Fenced: machine) unless the workspace is ready and its machine is this one, up, and going to
-- stay so, on a host that is not drained. What parks it locks the workspace: a transaction that asks for the machine after
-- it has touched the workspace is seen by the park, or sees it.
select fence('machine', exists (
    select from workspaces w join machines m on m.tenant_id = w.tenant_id and m.id = w.machine_id
    where w.tenant_id = app_tenant() and w.id = @id::uuid and w.status = 'ready' and m.id = @machine_id::uuid and m.status = 'ready' and m.transition = ''
      and not host_draining(m.host_id)));

-- name: TouchWorkspace :exec
update workspaces set last_active_at = now() where tenant_id = app_tenant() and id = @id;

-- Owned operations on a workspace's machine. See package internal/machine/operation.

-- name: InsertMachineOperation :execrows
insert into operations (tenant_id, id, kind, workspace_id, machine_id, payload)
values (app_tenant(), @id, @kind, @workspace_id::uuid, @machine_id::uuid, @payload);

-- name: ClaimMachineOperation :one
-- Takes an operation that nobody owns. Its epoch grows, so that whatever its last owner still writes is refused. With
-- adopt a server takes back what it held before it died. A machine can be worked on by its own host only (see host_of).
update operations o set
    state = 'running', owner = @owner::uuid, epoch = o.epoch + 1, started_at = coalesce(o.started_at, now()),
    lease_until = now() + make_interval(secs => @lease::float8)
where o.tenant_id = app_tenant() and o.id = @id and o.kind in ('setup', 'park', 'wake', 'rebuild', 'destroy') and o.state in ('pending', 'running')
  and (o.lease_until is null or o.lease_until < now() or (@adopt::bool and o.owner = @owner::uuid))
  and coalesce(host_of(o.tenant_id, o.kind, o.machine_id, o.workspace_id), @owner::uuid) = @owner::uuid
returning *;

-- name: RenewMachineOperation :execrows
update operations set lease_until = now() + make_interval(secs => @lease::float8)
where tenant_id = app_tenant() and id = @id and owner = @owner::uuid and epoch = @epoch and state = 'running';

-- name: GuardMachineOperation :one
-- Locks an operation that the caller still owns to the end of its transaction; no row: it lost it. The workspace is locked
-- before it, as everybody does who changes both.
with w as materialized (select l.id from workspaces l where l.tenant_id = app_tenant() and l.id = @workspace_id for update)
select o.id from w join operations o on o.workspace_id = w.id
where o.tenant_id = app_tenant() and o.id = @id and o.owner = @owner::uuid and o.epoch = @epoch and o.state = 'running'
for update of o;

-- name: StepMachineOperation :exec
update operations set step = @step where tenant_id = app_tenant() and id = @id;

-- name: EndMachineOperation :exec
-- After GuardMachineOperation.
update operations set state = @state, error = sqlc.narg('error'), ended_at = now(), owner = null, lease_until = null
where tenant_id = app_tenant() and id = @id;

-- name: ReleaseMachineOperation :execrows
-- Gives an operation back; nobody takes it before the pause has passed.
update operations set state = 'pending', owner = null, error = sqlc.narg('error'),
    lease_until = now() + make_interval(secs => @pause::float8)
where tenant_id = app_tenant() and id = @id and owner = @owner::uuid and epoch = @epoch and state = 'running';

-- name: CancelMachineOperations :many
-- Ends whatever is under way with a workspace's machine, and says whose it was. Its owner's next write is refused.
with open as materialized (
    select c.tenant_id, c.id, c.owner from operations c
    where c.tenant_id = app_tenant() and c.workspace_id = @workspace_id::uuid
      and c.kind in ('setup', 'park', 'wake', 'rebuild', 'destroy') and c.state in ('pending', 'running')
    for update
)
update operations o set state = 'cancelled', ended_at = now(), owner = null, lease_until = null, epoch = o.epoch + 1
from open where o.tenant_id = open.tenant_id and o.id = open.id
returning o.id, open.owner;

-- name: CancelOnMachine :exec
-- Ends what is under way with a machine that is there no more, but for its end.
update operations set state = 'cancelled', ended_at = now(), owner = null, lease_until = null, epoch = epoch + 1
where tenant_id = app_tenant() and workspace_id = @workspace_id::uuid and machine_id = @machine_id::uuid
  and kind in ('park', 'wake') and state in ('pending', 'running');

-- name: OpenMachineOperation :one
select * from operations
where tenant_id = app_tenant() and workspace_id = @workspace_id::uuid
  and kind in ('setup', 'park', 'wake', 'rebuild', 'destroy') and state in ('pending', 'running');

-- name: LastMachineOperations :many
-- What was done with a workspace's machines, the newest first.
select * from operations
where tenant_id = app_tenant() and workspace_id = @workspace_id::uuid and kind in ('setup', 'park', 'wake', 'rebuild', 'destroy')
order by created_at desc, id desc limit @at_most;

-- name: OperationElsewhere :one
-- The server that does an operation, or must, when it is another one than the caller's.
select h.id, h.url, host_away(h.id)::bool as away
from operations o join hosts h on h.id = coalesce(case when o.lease_until > now() then o.owner end, host_of(o.tenant_id, o.kind, o.machine_id, o.workspace_id))
where o.tenant_id = app_tenant() and o.id = @id and h.id <> @here::uuid;

-- name: Operation :one
select * from operations where tenant_id = app_tenant() and id = @id;

-- name: HeldOperations :many
select h.tenant_id::uuid as tenant_id, h.id::uuid as id from held_operations(@holder::uuid) h (tenant_id, id);

-- name: DueMachineOperations :many
select d.tenant_id::uuid as tenant_id, d.id::uuid as id from due_machine_operations(@host::uuid, @at_most::int) d (tenant_id, id);

-- name: InsertMachine :exec
-- host_id: where it will be made, unless that one is away by then.
insert into machines (tenant_id, id, workspace_id, provider, host_id, status, transition)
values (app_tenant(), @id, @workspace_id, @provider, @host_id::uuid, 'pending', 'provisioning');

-- name: Machine :one
select * from machines where tenant_id = app_tenant() and id = @id;

-- name: LockMachine :one
select * from machines where tenant_id = app_tenant() and id = @id for update;

-- name: MachinesToDestroy :many
-- Machines of a workspace, the given one aside, that may still exist at their provider: a failed one was destroyed when
-- it failed, unless its transition says otherwise.
select * from machines
where tenant_id = app_tenant() and workspace_id = @workspace_id and id is distinct from sqlc.narg('except')::uuid
  and (status not in ('terminated', 'failed') or transition <> '')
order by created_at;

-- name: PlaceMachine :exec
-- Before it is made: whose host it will be on, under which epoch.
update machines set host_id = @host_id::uuid, epoch = @epoch, limits = @limits, updated_at = now()
where tenant_id = app_tenant() and id = @id;

-- name: StartMachine :exec
update machines set provider_ref = @provider_ref, base = @base, status = 'starting', updated_at = now()
where tenant_id = app_tenant() and id = @id;

-- name: BuildMachine :exec
-- What the setup reads of the environment, as it reads it.
update machines set built = @built, policy = @policy, updated_at = now() where tenant_id = app_tenant() and id = @id;

-- name: ReadyMachine :exec
update machines set status = 'ready', transition = '', error = null, updated_at = now(), disk_bytes = @disk_bytes,
    ready_at = coalesce(ready_at, now()), woken_at = now(), parked_at = null
where tenant_id = app_tenant() and id = @id;

-- name: WakeMachine :execrows
-- A parked machine counts as running from here on.
update machines set status = 'starting', transition = 'waking', error = null, updated_at = now()
where tenant_id = app_tenant() and id = @id and status in ('starting', 'suspended');

-- name: ParkingMachine :execrows
update machines set transition = 'parking', updated_at = now()
where tenant_id = app_tenant() and id = @id and status = 'ready' and transition = '';

-- name: ParkIdleMachine :execrows
-- Marks a machine that has been idle for so long. The workspace is locked before it.
update machines m set transition = 'parking', updated_at = now()
where m.tenant_id = app_tenant() and m.id = @id and m.status = 'ready' and m.transition = '' and @idle::float8 > 0
  and idle_since(m.tenant_id, m.workspace_id, m.woken_at) <= now() - make_interval(secs => @idle::float8);

-- name: ParkOldMachine :execrows
-- Marks a machine that has been up for so long, whatever runs on it.
update machines set transition = 'parking', updated_at = now()
where tenant_id = app_tenant() and id = @id and status = 'ready' and transition = '' and @ceiling::float8 > 0
  and woken_at <= now() - make_interval(secs => @ceiling::float8);

-- name: SpareMachine :execrows
-- Takes the mark from a machine that was to park and is not idle any more.
update machines m set transition = '', updated_at = now()
where m.tenant_id = app_tenant() and m.id = @id and m.status = 'ready' and m.transition = 'parking'
  and (@idle::float8 = 0 or coalesce(idle_since(m.tenant_id, m.workspace_id, m.woken_at) > now() - make_interval(secs => @idle::float8), true));

-- name: DisposeMachine :execrows
-- Marks the machine of a conversation that has been up, or parked, for so long.
update machines set transition = 'destroying', updated_at = now()
where tenant_id = app_tenant() and id = @id and transition = ''
  and (status = 'ready' and @ceiling::float8 > 0 and woken_at <= now() - make_interval(secs => @ceiling::float8)
    or status = 'suspended' and @retention::float8 > 0 and parked_at <= now() - make_interval(secs => @retention::float8));

-- name: ParkMachine :execrows
update machines set status = 'suspended', transition = '', error = sqlc.narg('error'), updated_at = now(), parked_at = coalesce(parked_at, now())
where tenant_id = app_tenant() and id = @id and status in ('starting', 'ready', 'suspended');

-- name: PutMachineWork :exec
insert into machine_work (tenant_id, machine_id, work) values (app_tenant(), @machine_id, @work)
on conflict (tenant_id, machine_id) do update set work = excluded.work, seen_at = now();

-- name: DropMachineWork :exec
delete from machine_work where tenant_id = app_tenant() and machine_id = @machine_id;

-- name: MachineWork :one
select work, seen_at from machine_work where tenant_id = app_tenant() and machine_id = @machine_id;

-- name: RetireMachine :exec
-- Another takes the place of a machine that is up: it counts no more, and is destroyed before that one is made.
update machines set status = 'terminated', transition = 'destroying', ended_at = now(), updated_at = now()
where tenant_id = app_tenant() and id = @id and status in ('pending', 'starting', 'ready');

-- name: DoomMachine :exec
-- Before it is destroyed, so that a crash leaves a trace.
update machines set transition = 'destroying', updated_at = now() where tenant_id = app_tenant() and id = @id;

-- name: EndMachine :exec
update machines set status = @status, transition = '', error = sqlc.narg('error'), ended_at = coalesce(ended_at, now()), updated_at = now()
where tenant_id = app_tenant() and id = @id;

-- name: MachineFoundAs :one
-- What the provider says of a machine that nothing is under way with. No row: something is, or it was known.
update machines m set status = @status, updated_at = now(), error = sqlc.narg('error'),
    ended_at = case when @status::text = 'lost' then now() end, parked_at = case when @status::text = 'suspended' then now() end
where m.tenant_id = app_tenant() and m.id = @id and m.status in ('ready', 'suspended') and m.status <> @status::text and m.transition = ''
  and not exists (
      select 1 from operations o
      where o.tenant_id = m.tenant_id and o.workspace_id = m.workspace_id
        and o.kind in ('setup', 'park', 'wake', 'rebuild', 'destroy') and o.state in ('pending', 'running'))
returning m.workspace_id;

-- name: MeasureMachine :exec
update machines set disk_bytes = @disk_bytes where tenant_id = app_tenant() and id = @id and disk_bytes <> @disk_bytes;

-- name: RunningMachines :one
-- Of the whole instance.
select running_machines();

-- name: LockFleet :exec
-- One decision about the fleet's ceiling at a time.
select pg_advisory_xact_lock(hashtextextended('fleet', 0));

-- name: FailMachine :exec
-- The machine of a setup that failed, also when it could not be destroyed yet.
update machines set status = 'failed', ended_at = coalesce(ended_at, now()), updated_at = now()
where tenant_id = app_tenant() and id = @id;

-- name: WorkspaceOfMachine :one
-- The workspace whose current machine it is.
select w.id from workspaces w where w.tenant_id = app_tenant() and w.machine_id = @machine_id::uuid and w.status <> 'deleted';

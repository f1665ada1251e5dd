-- Workspaces, the machines under them, their setups, and the operations that servers own.

create table workspaces (
    tenant_id      uuid not null references tenants on delete cascade,
    id             uuid not null,
    name           text not null check (length(name) between 1 and 200),
    implicit       boolean not null default false,
    environment_id uuid,                  -- null: a conversation's own machine, made from nothing but the base
    vault_id       uuid,
    provider       text not null,
    status         text not null check (status in ('provisioning', 'ready', 'failed', 'deleting', 'deleted')),
    machine_id     uuid,                  -- the current machine; null until the first setup made one
    setup_id       uuid,                  -- the running or last setup
    setup_step     text not null default '',
    error          jsonb,                 -- {step, message, exit_code, signal, output_tail}, redacted
    metadata       jsonb not null default '{}',
    last_active_at timestamptz not null default now(),
    created_at     timestamptz not null default now(),
    updated_at     timestamptz not null default now(),
    primary key (tenant_id, id),
    foreign key (tenant_id, environment_id) references environments,
    foreign key (tenant_id, vault_id) references vaults,
    check (implicit or environment_id is not null)
);
create unique index workspaces_name on workspaces (tenant_id, name) where not implicit and status <> 'deleted';
create index workspaces_environment on workspaces (tenant_id, environment_id);
call protect('workspaces');
call definer_reads('workspaces');

create table machines (
    tenant_id      uuid not null references tenants on delete cascade,
    id             uuid not null,
    workspace_id   uuid not null,
    host_id        uuid references hosts, -- the server whose host runs it
    provider       text not null,
    provider_ref   text not null default '',   -- the provider's id; '' until created
    status         text not null check (status in ('pending', 'starting', 'ready', 'suspended', 'terminated', 'failed', 'lost')),
    transition     text not null default '',   -- provisioning, waking, parking, destroying; '' when nothing is under way
    epoch          bigint not null default 0,  -- of the operation that made it; it stands in the provider's labels
    base           jsonb not null default '{}',
    limits         jsonb not null default '{}',
    built          jsonb not null default '{}',   -- digest of each of the seven environment fields, taken by the setup
    policy         jsonb not null default '{}',   -- networking as built
    error          jsonb,
    disk_bytes     bigint not null default 0,
    ready_at       timestamptz,
    woken_at       timestamptz,
    ended_at       timestamptz,
    created_at     timestamptz not null default now(),
    updated_at     timestamptz not null default now(),
    primary key (tenant_id, id),
    foreign key (tenant_id, workspace_id) references workspaces on delete cascade
);
create index machines_workspace on machines (tenant_id, workspace_id);
create index machines_status on machines (status) where status in ('pending', 'starting', 'ready');
call protect('machines');
call definer_reads('machines');

-- One row a step of the last setup of a workspace. Replaced by each setup; outlives the machine.
create table setup_steps (
    tenant_id     uuid not null references tenants on delete cascade,
    workspace_id  uuid not null,
    setup_id      uuid not null,
    step          text not null check (step in ('machine', 'broker', 'environment', 'packages', 'repositories', 'setup_script')),
    position      int not null,
    state         text not null check (state in ('pending', 'running', 'done', 'failed', 'skipped')),
    note          text not null default '',   -- "apt 3, npm 1", "cached, 14 days old"
    started_at    timestamptz,
    duration_ms   bigint,
    exit_code     int,
    signal        text not null default '',
    output        text not null default '',   -- the last 64 KiB, redacted
    dropped_bytes bigint not null default 0,  -- what was printed before them
    primary key (tenant_id, workspace_id, step),
    foreign key (tenant_id, workspace_id) references workspaces on delete cascade
);
call protect('setup_steps');

-- Work that exactly one server owns: claimed by a guarded update, kept by a lease on the database's clock, adopted by
-- another server when the lease ends. A write that names an old epoch changes nothing.
create table operations (
    tenant_id       uuid not null references tenants on delete cascade,
    id              uuid not null,
    kind            text not null check (kind in ('setup', 'turn', 'park', 'wake', 'rebuild', 'destroy', 'end')),
    workspace_id    uuid,
    machine_id      uuid,
    conversation_id uuid,
    turn_id         uuid,
    state           text not null default 'pending' check (state in ('pending', 'running', 'done', 'failed', 'cancelled')),
    step            text not null default '',
    owner           uuid,
    epoch           bigint not null default 0,
    lease_until     timestamptz,
    payload         jsonb not null default '{}',
    error           jsonb,
    created_at      timestamptz not null default now(),
    started_at      timestamptz,
    ended_at        timestamptz,
    primary key (tenant_id, id)
);
create unique index operations_machine on operations (tenant_id, workspace_id)
    where kind in ('setup', 'park', 'wake', 'rebuild', 'destroy') and state in ('pending', 'running');
create unique index operations_turn on operations (tenant_id, turn_id) where kind = 'turn' and state in ('pending', 'running');
create index operations_open on operations (lease_until) where state in ('pending', 'running');
call protect('operations');
call definer_reads('operations');

-- Operations nobody owns now: never claimed, or their lease has ended. Ids only.
create function due_operations(at_most int)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select o.tenant_id, o.id from operations o
    where o.state in ('pending', 'running') and (o.lease_until is null or o.lease_until < now())
    order by o.created_at limit at_most
    $$;
call own_by_definer('due_operations(int)');

-- Those of them that work on a machine.
create function due_machine_operations(at_most int)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select o.tenant_id, o.id from operations o
    where o.kind in ('setup', 'park', 'wake', 'rebuild', 'destroy') and o.state in ('pending', 'running')
      and (o.lease_until is null or o.lease_until < now())
    order by o.created_at limit at_most
    $$;
call own_by_definer('due_machine_operations(int)');

-- Operations that a server holds. A server that starts again adopts its own at once: its predecessor is dead, since
-- the data directory has one user.
create function held_operations(holder uuid)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select o.tenant_id, o.id from operations o
    where o.state = 'running' and o.owner = holder order by o.created_at
    $$;
call own_by_definer('held_operations(uuid)');

-- Workspaces whose delete has begun and not ended, first among the reaper's work.
create function due_deletes(at_most int)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$ select w.tenant_id, w.id from workspaces w where w.status = 'deleting' order by w.updated_at limit at_most $$;
call own_by_definer('due_deletes(int)');

-- Machines of one host that should be up or were left in a transition.
create function due_machines(host uuid, at_most int)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select m.tenant_id, m.id from machines m
    where m.host_id = host and m.status in ('pending', 'starting', 'ready', 'suspended') order by m.created_at limit at_most
    $$;
call own_by_definer('due_machines(uuid, int)');

-- How many machines run on the whole instance: the fleet ceiling.
create function running_machines() returns bigint
    language sql stable security definer set search_path = public, pg_temp
    as $$ select count(*) from machines m where m.status in ('pending', 'starting', 'ready') $$;
call own_by_definer('running_machines()');

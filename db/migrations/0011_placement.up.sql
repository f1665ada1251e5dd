-- On which host a machine is made, and how operators take hosts out of service.

alter table hosts
    add column name         text not null default '',
    add column version      text not null default '',        -- of its server
    add column providers    text[] not null default '{local}',
    add column memory_bytes bigint not null default 0,
    add column cpus         int not null default 0,
    add column places       int not null default 1,          -- machines that it holds
    add column capped       boolean not null default false,  -- it may run no more than that
    add column draining_at  timestamptz,                     -- since when it takes no machine
    add column forgotten_at timestamptz;                     -- since when it is given up: servers that live forget its machines
grant update on hosts to managoat_platform;

-- A host that is forgotten leaves nothing that waits for it.
alter table machines drop constraint machines_host_id_fkey,
    add constraint machines_host_id_fkey foreign key (host_id) references hosts on delete set null;
create index machines_host on machines (host_id) where status in ('pending', 'starting', 'ready', 'suspended');

create function host_draining(host uuid) returns boolean
    language plpgsql stable set search_path = public, pg_temp
    as $$
    begin
        return exists (select from hosts h where h.id = host and h.draining_at is not null);
    end
    $$;

-- How many machines run on a host, and how many are parked there.
create function machines_on(host uuid) returns table (running bigint, parked bigint)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select count(*) filter (where m.status <> 'suspended'), count(*) filter (where m.status = 'suspended')
    from machines m where m.host_id = host and m.status in ('pending', 'starting', 'ready', 'suspended')
    $$;
call own_by_definer('machines_on(uuid)');

-- The host on which a new machine of a provider is made: of those that live, offer the provider, are not drained and not
-- full, the one with the most places that no machine has; where several have as many, the preferred one, then the first by
-- id. More machines than places may run where that is no bound, and a host has then less than none. Null: there is no host.
create function place_machine(provider text, preferred uuid) returns uuid
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select h.id from hosts h cross join lateral machines_on(h.id) m
    where not host_away(h.id) and h.draining_at is null and h.forgotten_at is null
      and place_machine.provider = any(h.providers) and (not h.capped or m.running < h.places)
    order by h.places - m.running desc, coalesce(h.id = preferred, false) desc, h.id limit 1
    $$;
call own_by_definer('place_machine(text, uuid)');

-- As before, but for a setup: it is the host's on which its machine was placed. Where that one is away, or where a server has
-- begun it and gave it up, it is placed as if it were new; where there is no other host for it, it waits for that one.
create or replace function host_of(tenant uuid, op_kind text, op_machine uuid, op_workspace uuid) returns uuid
    language plpgsql stable set search_path = public, pg_temp
    as $$
    begin
        if op_kind = 'setup' then
            return (select case when m.host_id is not null and not host_away(m.host_id) and o.epoch = 0 then m.host_id
                    else coalesce(place_machine(m.provider, m.host_id), m.host_id) end
                from machines m join operations o on o.tenant_id = m.tenant_id and o.machine_id = m.id
                where m.tenant_id = tenant and m.id = op_machine and o.workspace_id = op_workspace and o.kind = 'setup'
                    and o.state in ('pending', 'running'));
        end if;
        if op_kind in ('turn', 'end') then
            return (select m.host_id from workspaces w join machines m on m.tenant_id = w.tenant_id and m.id = w.machine_id
                where w.tenant_id = tenant and w.id = op_workspace and m.status in ('pending', 'starting', 'ready', 'suspended'));
        end if;
        return (select m.host_id from machines m where m.tenant_id = tenant and m.id = op_machine);
    end
    $$;

-- Machines that a host may have still, as far as their rows say. Those that are to be made are made elsewhere.
create function due_forgets(host uuid, at_most int)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select m.tenant_id, m.id from machines m
    where m.host_id = host and m.status <> 'pending' and (m.status in ('starting', 'ready', 'suspended') or m.transition <> '')
    order by m.created_at limit at_most
    $$;
call own_by_definer('due_forgets(uuid, int)');

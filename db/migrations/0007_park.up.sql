-- Parking machines that nobody uses, and disposing of those that one conversation had.

alter table machines add column parked_at timestamptz; -- null while it is not parked

create index turns_ended on turns (tenant_id, conversation_id, ended_at);

-- Since when nothing is done on a workspace's machine that came up at woken: the end of the last turn of any of its
-- conversations, or that moment. Null while a turn runs or waits. A turn that prints nothing for hours is not idle.
create function idle_since(tenant uuid, workspace uuid, woken timestamptz) returns timestamptz
    language sql stable set search_path = public, pg_temp
    as $$
    select case when not exists (
            select from conversations c join turns t on t.tenant_id = c.tenant_id and t.conversation_id = c.id
            where c.tenant_id = tenant and c.workspace_id = workspace and t.status in ('pending', 'running'))
        then greatest(woken, (
            select max(last.ended_at) from conversations c
            cross join lateral (
                select t.ended_at from turns t
                where t.tenant_id = c.tenant_id and t.conversation_id = c.id and t.ended_at is not null
                order by t.ended_at desc limit 1) last
            where c.tenant_id = tenant and c.workspace_id = workspace))
        end
    $$;

-- Workspaces whose machine on a host is up and has been idle, or up, for too long. Zero seconds: never.
create function due_parks(host uuid, idle float8, ceiling float8, at_most int)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select w.tenant_id, w.id from machines m
    join workspaces w on w.tenant_id = m.tenant_id and w.machine_id = m.id
    where m.host_id = host and m.status = 'ready' and m.transition = '' and w.status = 'ready'
      and (ceiling > 0 and m.woken_at <= now() - make_interval(secs => ceiling)
        or idle > 0 and m.woken_at <= now() - make_interval(secs => idle)
            and idle_since(w.tenant_id, w.id, m.woken_at) <= now() - make_interval(secs => idle))
    order by m.woken_at limit at_most
    $$;
call own_by_definer('due_parks(uuid, float8, float8, int)');

-- Workspaces of one conversation each whose machine on a host has been up, or parked, for too long. Zero seconds: never.
create function due_disposals(host uuid, ceiling float8, retention float8, at_most int)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select w.tenant_id, w.id from machines m
    join workspaces w on w.tenant_id = m.tenant_id and w.machine_id = m.id
    where m.host_id = host and m.transition = '' and w.status = 'ready' and w.implicit
      and (m.status = 'ready' and ceiling > 0 and m.woken_at <= now() - make_interval(secs => ceiling)
        or m.status = 'suspended' and retention > 0 and m.parked_at <= now() - make_interval(secs => retention))
    order by m.created_at limit at_most
    $$;
call own_by_definer('due_disposals(uuid, float8, float8, int)');

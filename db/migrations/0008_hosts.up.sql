-- Several servers on one database: what only one of them can do is offered to that one alone, so that what waits for a
-- host that is away stands in nobody's way.

-- Whether a host is away: its server gives a sign of life every ten seconds. No host is not away.
create function host_away(host uuid) returns boolean
    language plpgsql stable set search_path = public, pg_temp
    as $$
    begin
        return exists (select from hosts h where h.id = host and h.seen_at <= now() - interval '30 seconds');
    end
    $$;

-- The host that must do an operation: that of its machine, of a turn or a conversation's end that of the workspace's. Null:
-- any host may. That is so for a setup, which makes a machine anew, and where there is no machine yet, or none any more.
create function host_of(tenant uuid, op_kind text, op_machine uuid, op_workspace uuid) returns uuid
    language plpgsql stable set search_path = public, pg_temp
    as $$
    begin
        if op_kind = 'setup' then
            return null;
        end if;
        if op_kind in ('turn', 'end') then
            return (select m.host_id from workspaces w join machines m on m.tenant_id = w.tenant_id and m.id = w.machine_id
                where w.tenant_id = tenant and w.id = op_workspace and m.status in ('pending', 'starting', 'ready', 'suspended'));
        end if;
        return (select m.host_id from machines m where m.tenant_id = tenant and m.id = op_machine);
    end
    $$;

-- Operations nobody owns now that a host may do. Ids only.
create function due_operations(host uuid, at_most int)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select o.tenant_id, o.id from operations o
    where o.state in ('pending', 'running') and (o.lease_until is null or o.lease_until < now()) and o.kind in ('turn', 'end')
      and coalesce(host_of(o.tenant_id, o.kind, o.machine_id, o.workspace_id), host) = host
    order by o.created_at limit at_most
    $$;
call own_by_definer('due_operations(uuid, int)');

-- Those that work on a machine.
create function due_machine_operations(host uuid, at_most int)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select o.tenant_id, o.id from operations o
    where o.kind in ('setup', 'park', 'wake', 'rebuild', 'destroy') and o.state in ('pending', 'running')
      and (o.lease_until is null or o.lease_until < now())
      and coalesce(host_of(o.tenant_id, o.kind, o.machine_id, o.workspace_id), host) = host
    order by o.created_at limit at_most
    $$;
call own_by_definer('due_machine_operations(uuid, int)');

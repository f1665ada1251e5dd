-- The end of an account: it is closed at once, its machines go, and with the last of them all its rows.

alter table tenants add column closed_at timestamptz;

create function due_closed(at_most int)
    returns table (tenant_id uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp
    as $$ select t.tenant_id, t.tenant_id from tenants t where t.closed_at is not null order by t.closed_at limit at_most $$;
call own_by_definer('due_closed(int)');

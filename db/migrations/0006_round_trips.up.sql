-- Every request looks its key or its session up. A function in SQL is planned at every call, which costs more than the look;
-- PL/pgSQL keeps the plan of a connection.
create or replace function lookup_api_key(hash bytea)
    returns table (tenant_id uuid, key_id uuid, name text, scope text, conversation_id uuid, identity_id uuid, account text,
                   expires_at timestamptz, revoked_at timestamptz, last_used_at timestamptz, suspended_at timestamptz)
    language plpgsql stable security definer set search_path = public, pg_temp
    as $$
    begin
        return query
            select k.tenant_id, k.id, k.name, k.scope, k.conversation_id, k.identity_id, t.name,
                   k.expires_at, k.revoked_at, k.last_used_at, t.suspended_at
            from api_keys k
            join tenants t on t.tenant_id = k.tenant_id
            where k.key_hash = hash
            limit 1;
    end
    $$;

create or replace function lookup_session(hash bytea)
    returns table (tenant_id uuid, session_id uuid, identity_id uuid, email text, role text, account text, expires_at timestamptz, last_used_at timestamptz)
    language plpgsql stable security definer set search_path = public, pg_temp
    as $$
    begin
        return query
            select s.tenant_id, s.id, s.identity_id, m.email, m.role, t.name, s.expires_at, s.last_used_at
            from sessions s
            join memberships m on m.tenant_id = s.tenant_id and m.identity_id = s.identity_id
            join tenants t on t.tenant_id = s.tenant_id
            where s.token_hash = hash and s.expires_at > now() and t.suspended_at is null
            limit 1;
    end
    $$;

-- Refuses the transaction of an owner that does not hold any more what it writes for. An error, so that a statement whose
-- answer nobody waits for can be the check.
create function fence(what text, held boolean) returns void
    language plpgsql volatile set search_path = public, pg_temp
    as $$
    begin
        if not held then
            raise exception using errcode = 'MG001', message = 'the ' || what || ' has another owner now', constraint = what;
        end if;
    end
    $$;

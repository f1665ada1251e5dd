-- name: IdempotencyKey :one
select body_hash, status, response from idempotency_keys
where tenant_id = app_tenant() and route = @route and key = @key
  and created_at > now() - make_interval(secs => @max_age::float8);

-- name: TakeIdempotencyKey :exec
-- A key that is taken already refuses the transaction (db.Fenced: idempotency).
with taken as (
    insert into idempotency_keys (tenant_id, route, key, body_hash)
    values (app_tenant(), @route, @key, @body_hash)
    on conflict (tenant_id, route, key) do update
        set body_hash = excluded.body_hash, status = null, response = null, created_at = now()
        where idempotency_keys.created_at <= now() - make_interval(secs => @max_age::float8)
    returning key
)
select fence('idempotency', exists (select from taken));

-- name: StoreIdempotentResponse :exec
-- The commit does not wait for the disk: an answer that a crash of PostgreSQL takes back is one that is not known.
update idempotency_keys set status = @status, response = @response
from (select set_config('synchronous_commit', 'off', true)) as soon
where tenant_id = app_tenant() and route = @route and key = @key;

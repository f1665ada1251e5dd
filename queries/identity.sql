-- Written as the platform, when an account is made.

-- name: InsertIdentity :execrows
insert into identities (id, email, password_hash) values (@id, @email, @password_hash);

-- name: InsertMembership :exec
insert into memberships (tenant_id, identity_id, email, role) values (@tenant_id, @identity_id, @email, @role);

-- name: InsertTenantHead :exec
insert into tenant_heads (tenant_id) values (@tenant_id);

-- name: InsertQuotas :exec
insert into quotas (tenant_id) values (@tenant_id);

-- name: InsertSetupLink :one
insert into setup_links (token_hash, expires_at) values (@token_hash, now() + make_interval(secs => @lifetime::float8)) returning expires_at;

-- name: UseSetupLink :execrows
update setup_links set used_at = now() where token_hash = @token_hash and used_at is null and expires_at > now();

-- name: EndSetupLinks :exec
update setup_links set used_at = now() where used_at is null;

-- name: AnyTenantKey :one
select tenant_id, data_key, key_version from tenants order by created_at limit 1;

-- Asked before the account is known: each sees one row for one hash.

-- name: SessionByHash :one
select s.tenant_id::uuid as tenant_id, s.session_id::uuid as session_id, s.identity_id::uuid as identity_id,
    s.email::text as email, s.role::text as role, s.account::text as account,
    (s.last_used_at < now() - make_interval(secs => @stamp_every::float8))::boolean as stamp
from lookup_session(@hash::bytea) s (tenant_id, session_id, identity_id, email, role, account, expires_at, last_used_at);

-- name: KeyByHash :one
select k.tenant_id::uuid as tenant_id, k.key_id::uuid as key_id, k.scope::text as scope, k.account::text as account,
    coalesce(k.conversation_id, '00000000-0000-0000-0000-000000000000')::uuid as conversation_id,
    coalesce(k.identity_id, '00000000-0000-0000-0000-000000000000')::uuid as identity_id,
    coalesce(k.expires_at <= now(), false)::boolean as expired,
    (k.revoked_at is not null)::boolean as revoked,
    (k.suspended_at is not null)::boolean as suspended,
    coalesce(k.last_used_at < now() - make_interval(secs => @stamp_every::float8), true)::boolean as stamp
from lookup_api_key(@hash::bytea) k (tenant_id, key_id, name, scope, conversation_id, identity_id, account, expires_at, revoked_at, last_used_at, suspended_at);

-- name: IdentityByEmail :one
-- The oldest account of a person who belongs to several.
select i.identity_id::uuid as identity_id, i.password_hash::text as password_hash, i.tenant_id::uuid as tenant_id,
    i.role::text as role, i.account::text as account
from lookup_identity(@email::text) i (identity_id, password_hash, tenant_id, role, account)
limit 1;

-- name: SetupLinkWorks :one
select lookup_setup_link(@hash::bytea)::boolean;

-- name: HasAccounts :one
select has_accounts()::boolean;

-- name: TakeSignIn :one
-- One more attempt in the window of a key; a window that has ended begins again.
insert into sign_in_attempts (key, attempts, until) values (@key, 1, now() + make_interval(secs => @window_seconds::float8))
on conflict (key) do update set
    attempts = case when sign_in_attempts.until <= now() then 1 else sign_in_attempts.attempts + 1 end,
    until    = case when sign_in_attempts.until <= now() then excluded.until else sign_in_attempts.until end
returning attempts, extract(epoch from until - now())::float8 as ends_in;

-- name: ForgetSignIns :exec
delete from sign_in_attempts where key = @key;

-- name: GiveBackSignIn :exec
update sign_in_attempts set attempts = attempts - 1 where key = @key and attempts > 0;

-- name: PurgeSignIns :exec
delete from sign_in_attempts where key in (select key from sign_in_attempts where until <= now() limit 1000 for update skip locked);

-- Of one account.

-- name: InsertSession :one
insert into sessions (tenant_id, id, identity_id, token_hash, user_agent, address, expires_at)
values (@tenant_id, @id, @identity_id, @token_hash, @user_agent, @address, now() + make_interval(secs => @lifetime::float8))
returning expires_at;

-- name: Sessions :many
select id, user_agent, address, created_at, last_used_at, expires_at from sessions
where tenant_id = app_tenant() and identity_id = @identity_id and expires_at > now()
order by last_used_at desc, id;

-- name: DeleteSession :execrows
delete from sessions where tenant_id = app_tenant() and id = @id and identity_id = @identity_id;

-- name: PurgeSessions :exec
delete from sessions where tenant_id = app_tenant() and expires_at <= now();

-- name: StampSession :exec
update sessions set last_used_at = now()
where tenant_id = app_tenant() and id = @id and last_used_at < now() - make_interval(secs => @stamp_every::float8);

-- name: InsertKey :one
insert into api_keys (tenant_id, id, name, prefix, key_hash, scope, identity_id, conversation_id, expires_at)
values (@tenant_id, @id, @name, @prefix, @key_hash, @scope, @identity_id, @conversation_id, @expires_at)
returning *;

-- name: Keys :many
-- What people made; the keys of conversations come and go with them.
select * from api_keys
where tenant_id = app_tenant() and scope = 'full' and revoked_at is null
  and (sqlc.narg('before')::uuid is null or id < sqlc.narg('before'))
order by id desc limit @at_most;

-- name: RevokeKey :execrows
update api_keys set revoked_at = now() where tenant_id = app_tenant() and id = @id and revoked_at is null;

-- name: RevokeConversationKeys :many
update api_keys set revoked_at = now()
where tenant_id = app_tenant() and conversation_id = @conversation_id::uuid and revoked_at is null
returning id;

-- name: StampKey :exec
update api_keys set last_used_at = now()
where tenant_id = app_tenant() and id = @id
  and (last_used_at is null or last_used_at < now() - make_interval(secs => @stamp_every::float8));

-- name: Members :many
select identity_id, email, role, created_at from memberships where tenant_id = app_tenant() order by created_at, identity_id;

-- name: Member :one
select email, role from memberships where tenant_id = app_tenant() and identity_id = @identity_id;

-- name: Key :one
select * from api_keys where tenant_id = app_tenant() and id = @id;

-- name: KeyExpiry :one
select (now() + make_interval(secs => @lifetime::float8))::timestamptz as expires_at;

-- name: IsFuture :one
select (@moment::timestamptz > now())::boolean;

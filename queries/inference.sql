-- name: InsertCredential :one
insert into inference_credentials (tenant_id, id, name, provider, kind, base_url, sealed, key_version, is_default)
values (app_tenant(), @id, @name, @provider, @kind, @base_url, @sealed, @key_version, @is_default)
returning *;

-- name: Credential :one
select * from inference_credentials where tenant_id = app_tenant() and id = @id;

-- name: Credentials :many
select * from inference_credentials
where tenant_id = app_tenant() and (sqlc.narg('after')::text is null or name > sqlc.narg('after'))
order by name limit @at_most;

-- name: DefaultCredential :one
select * from inference_credentials where tenant_id = app_tenant() and provider = @provider and is_default;

-- name: LockCredentials :exec
-- One change of an account's credentials at a time: so that each provider has exactly one default.
select pg_advisory_xact_lock(hashtextextended('inference credentials ' || app_tenant()::text, 0));

-- name: LockCredential :one
select * from inference_credentials where tenant_id = app_tenant() and id = @id for update;

-- name: HoldCredential :one
-- Keeps the credential from being deleted until the transaction that refers to it ends.
select provider from inference_credentials where tenant_id = app_tenant() and id = @id for key share;

-- name: UndefaultCredentials :exec
update inference_credentials set is_default = false where tenant_id = app_tenant() and provider = @provider and is_default;

-- name: UpdateCredential :one
update inference_credentials set name = @name, kind = @kind, base_url = @base_url, sealed = @sealed, key_version = @key_version,
    revision = @revision, is_default = @is_default, updated_at = now()
where tenant_id = app_tenant() and id = @id
returning *;

-- name: CountCredentials :one
select count(*) from inference_credentials where tenant_id = app_tenant() and (@provider::text = '' or provider = @provider);

-- name: DeleteCredential :exec
delete from inference_credentials where tenant_id = app_tenant() and id = @id;

-- name: AgentsOfCredential :many
select a.id, a.name from agents a
join agent_versions v on v.tenant_id = a.tenant_id and v.agent_id = a.id and v.version = a.version
where a.tenant_id = app_tenant() and v.config ->> 'inference_credential_id' = @credential_id::text
order by a.name limit @at_most;

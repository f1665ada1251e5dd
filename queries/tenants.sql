-- name: InsertTenant :exec
insert into tenants (tenant_id, name, data_key, key_version) values ($1, $2, $3, $4);

-- name: Tenant :one
select * from tenants where tenant_id = app_tenant();

-- name: InsertAuditEvent :exec
insert into audit_events (tenant_id, id, actor_kind, actor_id, action, resource_type, resource_id, changed, request_id, address)
values (@tenant_id, @id, @actor_kind, @actor_id, @action, @resource_type, @resource_id, @changed, @request_id, @address);

-- name: AuditEvents :many
select * from audit_events
where tenant_id = app_tenant()
  and (sqlc.narg('before')::uuid is null or id < sqlc.narg('before'))
  and (sqlc.narg('actor_kind')::text is null or actor_kind = sqlc.narg('actor_kind'))
  and (sqlc.narg('actor_id')::text is null or actor_id = sqlc.narg('actor_id'))
  and (sqlc.narg('action')::text is null or action = sqlc.narg('action'))
  and (sqlc.narg('resource_type')::text is null or resource_type = sqlc.narg('resource_type'))
  and (sqlc.narg('resource_id')::text is null or resource_id = sqlc.narg('resource_id'))
  and (sqlc.narg('since')::timestamptz is null or at >= sqlc.narg('since'))
  and (sqlc.narg('until')::timestamptz is null or at < sqlc.narg('until'))
order by id desc
limit @at_most;

-- name: PutHost :exec
-- A server says that it is there, under the address at which other servers reach it.
insert into hosts (id, url) values (@id, @url)
on conflict (id) do update set url = excluded.url, started_at = now(), seen_at = now();

-- name: SeeHost :execrows
update hosts set seen_at = now() where id = @id;

-- name: Host :one
-- alive: it said so within the given seconds.
select id, url, started_at, seen_at, (seen_at > now() - make_interval(secs => @within::float8))::bool as alive
from hosts where id = @id;

"""What our programs asked of the API server in all other tests, beside what RBAC grants them."""

from typing import Final

import pytest

from tests.chart.helm import Helm, setting
from tests.cluster.cluster import Cluster
from tests.cluster.rights import Grant, grants_of, uses_in

pytestmark = pytest.mark.last

_SYNTHETIC: Final = "resourceclaims/driver"  # the API server asks itself for it; tested by its lack
_SWITCHES: Final = ("kubeletPlugin.migConfigLabel=true", "webhook.enabled=true")


@pytest.fixture
def grants(helm: Helm) -> list[Grant]:
    """Give all rights of the chart with each part that has some."""
    return list(grants_of(helm.objects(*setting(*_SWITCHES))))


@pytest.mark.every_cluster
def test_nothing_was_asked_for_beyond_the_rights(cluster: Cluster, grants: list[Grant]) -> None:
    uses = uses_in(cluster.audit_events())
    assert {use for use in uses if not use.is_granted(grants)} == set()
    assert {use for use in uses if use.is_refused} == set(), "refused by a policy"
    users = {grant.right.user for grant in grants}
    assert {use.right.user for use in uses} == users, "the log has requests of each part"


def test_every_right_was_used(cluster: Cluster, grants: list[Grant]) -> None:
    granted = {grant.right for grant in grants if grant.right.resource != _SYNTHETIC}
    used = {use.right for use in uses_in(cluster.audit_events())}
    print(*sorted(used), sep="\n")
    assert granted - used == set(), "take these rights away"
